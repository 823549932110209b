"""Sphinx's configuration: `make docs` builds the site from the pages of this folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "PyTorch with Large Model Support"
author = "lmsbuild contributors"
html_title = "Large Model Support"

extensions = ["myst_parser", "sphinx_copybutton", "sphinx.ext.napoleon", "docstrings", "outside"]
highlight_language = "text"
toc_object_entries_show_parents = "hide"

# The anchors that GitHub makes of headings, so that the same links work there and here.
myst_heading_anchors = 4
# Commands are copied without the prompt, and without what they print.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
# Names of types in docstrings are the users' words, such as "path-like".
napoleon_use_param = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_static_path = ["static"]
html_css_files = ["site.css"]
# These have no pages below them.
html_sidebars = {"tutorial": [], "migration": []}
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "footer_start": [],
    "footer_end": [],
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
}

# The help of each command, as `make man` writes it.
man_pages = [("reference", "lmsbuild", "PyTorch with Large Model Support", [author], 1)]

# `make docs ARGS=--links` follows links to other sites. That needs a network; the build does not.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors = False


def leave_out_of_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """The tables of a run, which the run's own page leads to."""
    if re.fullmatch(r"results/[^/]+/(?!README).+", name):
        source[0] = "---\norphan: true\n---\n\n" + source[0]


def setup(app: Sphinx) -> None:
    app.connect("source-read", leave_out_of_navigation)
    # A diagram is shown as its source: Mermaid's renderer would come from a server.
    app.add_lexer("mermaid", TextLexer)
