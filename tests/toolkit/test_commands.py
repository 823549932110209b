"""No command of the documentation is left out of tests/commands/commands.toml."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "commands"))

import book  # noqa: E402
import pages  # noqa: E402

BOOK = book.load()
EVERYTHING = [command for page in pages.pages() for command in pages.commands_of(page)]


def test_each_command_runs_somewhere() -> None:
    run = {command.text for page in BOOK.scenes for command in BOOK.run(page)}
    known = run | BOOK.elsewhere.keys() | BOOK.never.keys()
    assert len(EVERYTHING) > 100
    left_out = [f"{c.page}:{c.line}: {c.text}" for c in EVERYTHING if c.text not in known]
    assert left_out == [], "list their page under [run] of tests/commands/commands.toml"


def test_nothing_is_listed_that_no_page_shows() -> None:
    shown = {command.text for command in EVERYTHING}
    assert [text for text in (*BOOK.elsewhere, *BOOK.never) if text not in shown] == []
    assert not BOOK.elsewhere.keys() & BOOK.never.keys()
    assert [page for page in BOOK.scenes if not BOOK.run(page)] == []


@pytest.mark.parametrize("page", BOOK.scenes)
def test_what_is_changed_is_there(page: str) -> None:
    scene = BOOK.scenes[page]
    texts = [command.text for command in BOOK.run(page)]
    assert [old for old in scene.change if not any(old in text for text in texts)] == []
    beginnings = (*scene.append, *scene.servers)
    assert [b for b in beginnings if not any(text.startswith(b) for text in texts)] == []
    assert scene.folder in ("", "checkout")


@pytest.mark.parametrize("place", sorted({p for by in BOOK.elsewhere.values() for p in by}))
def test_what_runs_the_others_is_there(place: str) -> None:
    file, _, test = place.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert not test or re.search(rf"^def {test}\(", text, re.MULTILINE)


# --- finding them -------------------------------------------------------------------------------

PAGE = """\
# Title

    make wheel    # builds it
    # a comment
    PYTORCH_LMS=1 A_1=b python train.py

Text, and `make test` in it.

    make     a table
    python   of words

```console
$ lmsbuild tags
v2
```

```python
    make = 1
```

1. Step:

       cd there

   ```console
   $ make lint
   ```
"""


def test_commands_are_found() -> None:
    found = [(command.line, command.text) for command in pages.find("x.md", PAGE)]
    assert found == [
        (3, "make wheel"),
        (5, "PYTORCH_LMS=1 A_1=b python train.py"),
        (13, "lmsbuild tags"),
        (23, "cd there"),
        (26, "make lint"),
    ]


@pytest.mark.parametrize("text", ["\n    make wheel\n    ls dist\n", "\n    ls dist\n    make\n"])
def test_a_new_program_is_told(text: str) -> None:
    with pytest.raises(pages.MixedBlockError, match=r"x\.md:2: 'ls dist' is no command"):
        pages.find("x.md", text)


def test_how_a_command_is_run() -> None:
    scene = book.Scene(change={"DIR": "x y"}, append={"make": "-n"}, servers=("lms",))
    lines = [scene.line(pages.Command("p", 1, text)) for text in ("make DIR", "lms DIR", "a")]
    assert lines == ["make x y -n", "serve lms x y", "a"]
