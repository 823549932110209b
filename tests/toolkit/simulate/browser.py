"""A headless Chromium of this machine, for the pages of reports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium is installed: apt-get install chromium-headless-shell"
WIDE, PHONE = (1200, 900), (390, 844)


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's, without a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root may not use the sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class View:
    """A page that is shown, and what it did besides.

    Attributes:
        page: Playwright's.
        requests: URLs that it asked for, but for itself.
        messages: errors and other messages of its scripts.
    """

    def __init__(self, browser: Any, file: Path, size: tuple[int, int] = WIDE, **more: Any) -> None:
        width, height = size
        self.page = browser.new_page(viewport={"width": width, "height": height}, **more)
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(file.as_uri())
        self.requests.remove(file.as_uri())

    def chart(self, name: str) -> Any:
        return self.page.locator(f"#{name}")

    def drag(self, name: str, begin: float, end: float) -> None:
        """With the mouse; begin and end are parts of the chart's width."""
        box = self.chart(name).bounding_box()
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + begin * box["width"], y)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + (begin + end) / 2 * box["width"], y)
        self.page.mouse.move(box["x"] + end * box["width"], y)
        self.page.mouse.up()

    def ticks(self, name: str) -> list[float]:
        """The numbers on the chart's horizontal axis."""
        texts = self.page.locator(f"#{name} text[text-anchor=middle]").all_text_contents()
        return [float(text) for text in texts]
