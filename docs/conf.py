"""Sphinx configuration; `make docs` builds the pages and treats every warning as an error."""

from __future__ import annotations

from importlib.metadata import version as distribution_version

project = "fiberscope"
author = "The fiberscope maintainers"
copyright = f"2026, {author}"
release = distribution_version("fiberscope")
version = release

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"{project} {release}"
html_show_sphinx = False
