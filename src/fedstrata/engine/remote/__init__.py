"""A run whose clients are processes elsewhere, whatever carries the lines: `fedstrata serve` and `join`.

| file | |
|---|---|
| `serving`, `engine`, `turns`, `scoring` | of the server: a run that is served, its engine, turns, scores |
| `joining`, `joined_runs`, `site_identity` | of a site: its part, its runs, who it is |
| `site_policy`, `site_scoring` | of a site: what it allows, and how it scores |
| `shared_settings`, `agreeing` | of both: settings that a site is told; what must be equal at both ends |
| `answering`, `generating` | after the run: `fedstrata split answer`, and `fedstrata split generate` |
"""
