"""The site of the documentation: it builds without a warning, and fits on a phone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.helpers.ci_script import load
from tests.toolkit.simulate import browser

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

needs_a_browser = pytest.mark.skipif(browser.executable() is None, reason=browser.MISSING)

# What can be moved sideways: the page, or a box in it that is neither code nor a table.
SIDEWAYS = """() => {
    const boxes = [...document.querySelectorAll("*:not(pre, .pst-scrollable-table-container)")];
    const moves = box => ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    return boxes
        .filter(box => box.clientWidth && (box === document.scrollingElement || moves(box)))
        .filter(box => box.scrollWidth > box.clientWidth)
        .map(box => `${box.tagName}.${box.className}: ${box.scrollWidth} of ${box.clientWidth}`);
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    result = subprocess.run(
        [sys.executable, str(ROOT / "ci/docs.py"), "--out", str(out)],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return out


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as found:
        yield found


def test_each_page_is_there(site: Path) -> None:
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")]
    assert len(pages) > 40
    assert [page for page in pages if not (site / page).is_file()] == []


def test_functions_are_described_with_what_they_take_and_raise(site: Path) -> None:
    text = (site / "reference/api.html").read_text("utf-8")
    for name in ("torch.cuda.set_limit_lms", "torch.cuda.lms.record", "torch.cuda.lms.wrap"):
        assert f'id="{name}"' in text
    # Those that only PyTorch's own files call are not.
    assert 'id="torch.cuda.lms.add_stats"' not in text
    assert "<strong>ValueError</strong>" in text


def test_a_manual_page(site: Path) -> None:
    """Of each command."""
    out = site.parent / "man"
    assert load("docs").sphinx("man", out) == 0
    text = (out / "lmsbuild.1").read_text("utf-8")
    assert text.startswith((".", "'"))
    assert text.count(".SH LMSBUILD") > 20
    assert ".SH EXIT CODES" in text


def test_links_to_files_outside_of_docs(site: Path) -> None:
    """A page for those that are shown, and the file for others."""
    porting = (site / "porting.html").read_text("utf-8")
    assert 'href="development/contributing.html"' in porting
    results = (site / "results/2026-11-21-h200/README.html").read_text("utf-8")
    assert "runtime.txt" in results


@needs_a_browser
def test_no_page_moves_sideways(site: Path, chromium: Any) -> None:
    page = chromium.new_page()
    found = {}
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            found[str(file.relative_to(site)), width] = page.evaluate(SIDEWAYS)
    assert len(found) > 80
    assert {where: boxes for where, boxes in found.items() if boxes} == {}


@needs_a_browser
def test_a_table_that_is_too_wide_moves_in_its_own_box(site: Path, chromium: Any) -> None:
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.goto((site / "coverage.html").as_uri())
    boxes = page.locator(".pst-scrollable-table-container")
    assert boxes.count() > 0
    assert boxes.first.evaluate("box => box.scrollWidth > box.clientWidth")


@needs_a_browser
def test_nothing_is_asked_of_another_server(site: Path, chromium: Any) -> None:
    view = browser.View(chromium, site / "reference/api.html")
    assert len(view.requests) > 3
    assert [url for url in view.requests if not url.startswith(("file:", "data:"))] == []


@needs_a_browser
def test_a_search_finds_a_function(site: Path, chromium: Any) -> None:
    page = chromium.new_page()
    page.goto((site / "search.html").as_uri() + "?q=set_limit_lms")
    page.locator("#search-results li a").first.wait_for(timeout=30_000)
    assert "reference/api.html" in page.locator("#search-results").inner_html()


RIGHT = ("[a](porting.md#a-heading)", "[a](../ci/docs.py)", "`[a](nowhere.md)`")
WRONG = {
    "[a](nowhere.md)": "'nowhere.md'",
    "[a](porting.md#nowhere)": "'nowhere'",
    "[a](../nowhere.py)": "'../nowhere.py'",
    # It is a page, so it has to be shown as one.
    "[a](../README.md)": "README' [myst.xref_missing]",
    "```{eval-rst}\n.. functions::\n```": "1 argument(s) required",
}


@pytest.mark.parametrize("texts", [RIGHT, WRONG], ids=["right", "wrong"])
def test_what_is_wrong_is_found(tmp_path: Path, texts: Iterable[str]) -> None:
    """In a small site with the same configuration."""
    docs = tmp_path / "docs"
    shutil.copytree(DOCS / "static", docs / "static")
    for name in ("conf.py", "docstrings.py", "outside.py"):
        shutil.copy(DOCS / name, docs)
    (tmp_path / "ci").mkdir()
    shutil.copy(ROOT / "ci/docs.py", tmp_path / "ci")
    (tmp_path / "README.md").write_text("# No page\n")
    (docs / "porting.md").write_text("---\norphan: true\n---\n# A heading\n")
    (docs / "index.md").write_text("# Title\n\n" + "\n\n".join(texts))
    command = [sys.executable, str(tmp_path / "ci/docs.py")]
    result = subprocess.run(command, capture_output=True, text=True)
    if texts is RIGHT:
        assert (result.returncode, result.stderr) == (0, "")
    else:
        assert result.returncode == 1
        assert [why for why in WRONG.values() if why not in result.stderr] == []
