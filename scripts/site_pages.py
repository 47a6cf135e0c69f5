"""A hook of mkdocs: the site's pages are the repository's own, each under the path that it has there.

So every relative link between them leads where it leads in the repository, from `docs/` to `benchmarks/` and
back. Pages of `docs/` are at the top of the site. Equations become MathML, which browsers draw by themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "deploy/README.md",
    "examples/README.md",
    "benchmarks/*/README.md",
)
LINKED = (
    "benchmarks/queue.*",
    "benchmarks/*/*.py",
    "benchmarks/*/*.yaml",
    "benchmarks/results/*.json",
    "examples/*.py",
    "LICENSE",
    "CITATION.cff",
    ".github/workflows/*.yml",
)
"""Files that pages link to."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Has fenced blocks of `math` drawn as equations."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "equation", "format": equation}]
    return config


def equation(source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **_: Any) -> str:
    """Returns LaTeX as MathML."""
    return f'<div class="{css_class}">{convert(source, display="block")}</div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes the pages of the repository in place of those of `docs/` alone."""
    for page in list(files.documentation_pages()):
        files.remove(page)
    for path in sorted(path for pattern in (*PAGES, *LINKED) for path in ROOT.glob(pattern)):
        name = path.relative_to(ROOT).as_posix()
        file = File(name, str(ROOT), config.site_dir, config.use_directory_urls)
        file.dest_uri = file.dest_uri.removeprefix("docs/")
        files.append(file)
    return files
