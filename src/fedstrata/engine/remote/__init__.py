"""A run whose clients are processes elsewhere, whatever carries the lines: `fedstrata serve` and `join`.

| file | |
|---|---|
| `serving`, `engine`, `turns`, `scoring` | of the server: a run that is served, its engine, turns, scores |
| `joining`, `site_identity`, `site_policy`, `site_scoring` | of a site: its part, who it is, what it allows |
| `shared_settings`, `agreeing` | of both: settings that a site is told; what must be equal at both ends |
| `answering`, `generating` | after the run: `fedstrata split answer`, and `fedstrata split generate` |
"""
