"""The page of a report, in a real browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmsbuild.simulate.link import Link
from lmsbuild.simulate.planner import Planner
from lmsbuild.simulate.report import Report
from lmsbuild.simulate.trace import read_trace
from tests.toolkit.simulate import browser
from tests.toolkit.simulate.browser import PHONE, WIDE, View
from tests.toolkit.simulate.reports import report
from tests.toolkit.simulate.traces import MB, RESNET50, Recording, adam

pytestmark = pytest.mark.skipif(browser.executable() is None, reason=browser.MISSING)

CHARTS = ("memory", "lanes", "absences", "points", "roles")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def resnet50(compiled: Planner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    link = Link(title="a slow link", out_rate=5e8, in_rate=5e8)
    found = Report(compiled, read_trace(RESNET50), 200 * MB, link)
    return written(found, tmp_path_factory.mktemp("page"))


def written(found: Report, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_bytes(found.render(path))
    return path


def data_of(path: Path) -> Any:
    found = re.search(r'type="application/json">(.*?)</script>', path.read_text("utf-8"))
    assert found
    return json.loads(found[1])


def test_everything_is_drawn(chromium: Any, resnet50: Path) -> None:
    view = View(chromium, resnet50)
    assert view.messages == []
    assert view.requests == []
    for name in CHARTS:
        box = view.chart(name).locator("svg").bounding_box()
        assert box["width"] > 1000
        shapes = "g path, g rect, g polyline, svg > rect[fill]"
        assert view.chart(name).locator(shapes).count() > 0, name
    assert view.chart("memory").locator("g path").count() == 4
    text = view.page.locator("main").inner_text()
    for label in ("memory (MB)", "time (ms)", "not on the GPU (MB)", "GPU memory (MB)"):
        assert label in text
    for entry in ("GPU without LMS", "limit, 190.0 MB", "waiting", "activations", "lower bound"):
        assert entry in text
    assert "ResNet" not in view.page.title()
    assert view.page.locator("table").count() >= 5


def test_the_axis_ends_with_the_iteration(chromium: Any, resnet50: Path) -> None:
    planned, on_demand = data_of(resnet50)["courses"]
    view = View(chromium, resnet50)
    for course, button in ((planned, 0), (on_demand, 1), (planned, 0)):
        view.page.click(f"button[data-course='{button}']")
        assert view.page.locator("button[aria-pressed=true]").inner_text() == course["title"]
        for name in ("memory", "lanes", "absences"):
            last = view.ticks(name)[-1]
            assert 0.75 * course["end"] < last <= course["end"]
    assert view.messages == []


def test_a_part_of_the_iteration(chromium: Any, resnet50: Path) -> None:
    end = data_of(resnet50)["courses"][0]["end"]
    view = View(chromium, resnet50)
    whole = view.page.locator("#whole")
    assert not whole.is_visible()
    view.drag("memory", 0.5, 0.6)
    assert whole.is_visible()
    for name in ("memory", "lanes", "absences"):
        ticks = view.ticks(name)
        assert 0.4 * end < ticks[0] < ticks[-1] < 0.65 * end
    # The other charts have other axes.
    before = view.ticks("points")
    view.drag("points", 0.2, 0.8)
    assert view.ticks("points") == before
    whole.click()
    assert not whole.is_visible()
    assert view.ticks("memory")[0] == 0
    assert view.messages == []


def test_what_the_pointer_is_at(chromium: Any, resnet50: Path) -> None:
    view = View(chromium, resnet50)
    tip = view.page.locator(".tip")
    assert tip.count() == 0
    said = {}
    for name in ("memory", "lanes", "absences", "points"):
        view.chart(name).scroll_into_view_if_needed()
        box = view.chart(name).bounding_box()
        # Low in the chart of absences, where there is one.
        view.chart(name).hover(position={"x": box["width"] / 2, "y": box["height"] - 50})
        assert tip.count() == 1
        said[name] = tip.inner_text()
        crossed = view.page.locator(".cross[visibility=visible]").count()
        assert crossed == (1 if name == "points" else 3)
    assert re.search(
        r"ms\n.*\(backward\)\nGPU .* MB\nhost .* MB\nwithout LMS .* MB", said["memory"]
    )
    assert "(backward)" in said["lanes"]
    assert re.search(r"MB out\n\w+.*, .* MB\nout from .* ms to .* ms", said["absences"])
    assert re.search(r"MB\nplanned .* ms\non demand .* ms\nlower bound .* ms", said["points"])
    assert view.messages == []


@pytest.mark.parametrize("size", [WIDE, PHONE, (320, 568)])
def test_nothing_is_wider_than_the_screen(
    size: tuple[int, int], chromium: Any, resnet50: Path
) -> None:
    view = View(chromium, resnet50, size)
    assert view.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    ends = view.page.evaluate(
        "Array.from(document.querySelectorAll('svg text'), e => e.getBoundingClientRect())"
        ".map(box => [box.left, box.right])"
    )
    assert len(ends) > 20
    assert all(0 <= left < right <= size[0] for left, right in ends)


def test_another_width(chromium: Any, resnet50: Path) -> None:
    view = View(chromium, resnet50)
    view.page.set_viewport_size({"width": 500, "height": 900})
    # Not with wait_for_function(): the page's policy forbids what it does if it has to wait.
    width = "document.querySelector('#memory svg').viewBox.baseVal.width"
    deadline = time.monotonic() + 30
    while view.page.evaluate(width) >= 500 and time.monotonic() < deadline:
        view.page.wait_for_timeout(50)
    assert view.page.evaluate(width) < 500
    assert view.messages == []


def test_dark_mode(chromium: Any, resnet50: Path) -> None:
    light, dark = (
        View(chromium, resnet50, color_scheme=scheme).page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, "
            "getComputedStyle(document.querySelector('#memory text')).fill]"
        )
        for scheme in ("light", "dark")
    )

    def brightness(color: str) -> int:
        return sum(int(part) for part in re.findall(r"\d+", color)[:3])

    assert brightness(light[0]) > 700 > 400 > brightness(light[1])
    assert brightness(dark[0]) < 100 < 400 < brightness(dark[1])


def test_without_scripts(chromium: Any, resnet50: Path) -> None:
    view = View(chromium, resnet50, java_script_enabled=False)
    text = view.page.inner_text("body")
    assert "The charts need JavaScript. The tables below do not." in text
    assert "Swapped in an iteration, over a slow link" in text


def test_what_fits(chromium: Any, compiled: Planner, tmp_path: Path) -> None:
    view = View(chromium, written(report(compiled, adam(), tmp_path, 1000 * MB), tmp_path))
    assert view.messages == []
    assert view.page.inner_text(".headline").startswith("LMS is not necessary")
    assert view.chart("absences").count() == 0
    assert view.page.locator("button[data-course]").count() == 0
    # Not as high as the limit, which is far above.
    numbers = view.page.locator("#memory text[text-anchor=end]").all_text_contents()
    assert max(int(text) for text in numbers if text.isdigit()) <= 200
    assert view.chart("memory").locator("g path").count() == 4


def test_names_are_text(chromium: Any, compiled: Planner, tmp_path: Path) -> None:
    """An extension may call its operators what it likes."""
    name = "</script><img src=x onerror=alert(1)>&{0}"
    recording = Recording()
    for _ in range(3):
        recording.operator(name, recording.block("allocated", 10 * MB))
        recording.free(recording.blocks)
        recording.step()
    view = View(chromium, written(report(compiled, recording, tmp_path, 100 * MB), tmp_path))
    view.chart("memory").hover()
    assert name in view.page.locator(".tip").inner_text()
    assert f"largest operator ({name})" in view.page.inner_text("main")
    assert view.page.locator("img").count() == 0
    assert view.messages == []


def test_the_same_report_is_the_same_page(compiled: Planner, tmp_path: Path) -> None:
    pages = [report(compiled, adam(), tmp_path, 60 * MB).render(Path("x.html")) for _ in range(2)]
    assert pages[0] == pages[1]
    assert not re.search(rb"https?:(?!//www\.w3\.org)", pages[0])
