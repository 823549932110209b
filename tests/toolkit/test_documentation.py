"""The pages that users read, against the code: commands, options, links, names, tests, tables."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import re
import runpy
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lmsbuild.cli.main import main
from lmsbuild.registry import load_registry
from toolkit.helpers.ci_script import load

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "patches", "ci", "tests", "recipes")
# What a path in the text may begin with; others are a user's, or PyTorch's.
OURS = ("ci/", "docs/", "lmsbuild/", "patches/", "tests/")
# These describe what was there at their time.
HISTORY = ("CHANGELOG.md", "docs/results/")

FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"(?:^    +\S.*\n?)+", re.MULTILINE)
PROMPT = re.compile(r"^ *\$ (.+)", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
TEST = re.compile(r"(?:(?:tests/(?:\w+/)*)?(test_\w+\.py))?(?:::(test_\w+)(\*|\[[^\]]*\])?)?")
VARIABLE = re.compile(r"[A-Z][A-Z_]*=.*")


@dataclass(frozen=True)
class Page:
    root: Path
    name: str  # relative to root

    @property
    def path(self) -> Path:
        return self.root / self.name

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without its fenced code."""
        return FENCE.sub("", self.text)


def pages(root: Path, *, history: bool = True) -> list[Page]:
    files = [*root.glob("*.md"), *(p for f in FOLDERS for p in (root / f).rglob("*.md"))]
    names = sorted(path.relative_to(root).as_posix() for path in files)
    return [Page(root, name) for name in names if history or not name.startswith(HISTORY)]


# --- commands -------------------------------------------------------------------------------


def spans(page: Page) -> list[str]:
    """Code in a line of text; it may be broken between two lines."""
    return [" ".join(span.split()) for span in SPAN.findall(page.prose)]


def lines(page: Page) -> list[str]:
    """The lines of code that a user is to type, and code in the text."""
    blocks = itertools.chain.from_iterable(b.splitlines() for b in BLOCK.findall(page.prose))
    prompts = itertools.chain.from_iterable(map(PROMPT.findall, FENCE.findall(page.text)))
    return [*(line.strip() for line in blocks), *prompts, *spans(page)]


def words(line: str) -> list[str]:
    """The words of a command, without a comment and the variables that are set for it."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError:  # an apostrophe in the text
        return []
    return list(itertools.dropwhile(VARIABLE.fullmatch, found))


def wrong_commands(page: Page) -> Iterator[str]:
    for line in lines(page):
        command, *arguments = words(line) or [""]
        if command == "lmsbuild":
            wrong = why_wrong(main, arguments)
        elif command == "make":
            wrong = why_make_wrong(page.root, arguments)
        else:
            continue
        if wrong:
            yield f"{page.name}: {line}: {wrong}"


def why_wrong(command: click.Command, arguments: list[str]) -> str:
    """Why click would refuse the arguments, or nothing. Nothing is run."""
    command = copy.copy(command)  # click keeps the help option that it makes for this context
    if isinstance(command, click.Group):
        while arguments and arguments[0].startswith("-"):
            option, *arguments = arguments
            if option not in options_of(command):
                return f"there is no {option}"
        if not arguments:
            return ""
        name, *arguments = arguments
        inner = command.get_command(click.Context(command), name)
        return f"there is no command {name}" if inner is None else why_wrong(inner, arguments)
    command = copy.copy(command)
    command.params = [copy.copy(parameter) for parameter in command.params]
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            # The files of an example need not be there.
            parameter.type = copy.copy(parameter.type)
            parameter.type.exists = False
    try:
        # Closed again, so that what -v and -q turned on does not stay.
        with command.make_context(command.name, [a.strip("[]") for a in arguments]):
            pass
    except click.MissingParameter:
        pass  # in a sentence it need not be complete
    except click.UsageError as error:
        return error.format_message()
    return ""


def options_of(command: click.Command) -> set[str]:
    parameters = copy.copy(command).get_params(click.Context(command))
    return {name for parameter in parameters for name in parameter.opts}


def why_make_wrong(root: Path, arguments: list[str]) -> str:
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE)
    for argument in arguments:
        name, assigned, _ = argument.partition("=")
        if assigned and f"$({name})" not in makefile:
            return f"the Makefile has no {name}"
        if not assigned and name not in targets:
            return f"there is no target {name}"
    return ""


# --- links, paths, names and tests ----------------------------------------------------------


def wrong_links(page: Page) -> Iterator[str]:
    for link in LINK.findall(SPAN.sub("", page.prose)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if not target.is_relative_to(page.root.resolve()) or not target.exists():
            yield f"{page.name}: {link}: there is no such file"
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            yield f"{page.name}: {link}: there is no such heading"


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = LINK.sub(lambda link: link[0].partition("]")[0][1:], heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        numbered = (f"{slug}-{number}" for number in itertools.count(1))
        found.add(slug if slug not in found else next(n for n in numbered if n not in found))
    return found


def wrong_paths(page: Page) -> Iterator[str]:
    for word in itertools.chain.from_iterable(map(words, lines(page))):
        path = word.partition("::")[0].rstrip(",;:./")
        placeholder = re.search(r"[<>…{}]|/[A-Z]+(/|$)", path)
        if path.startswith(OURS) and not placeholder and not any(page.root.glob(path)):
            yield f"{page.name}: {path}: there is no such file"


def wrong_names(page: Page) -> Iterator[str]:
    """Functions of torch.cuda and torch.cuda.lms that are named and not there."""
    known, public = interface(page.root)
    for name in re.findall(r"torch\.cuda\.lms\.([a-zA-Z_]\w*)", page.text):
        if name not in known:
            yield f"{page.name}: torch.cuda.lms.{name}: there is no such function"
    for name in re.findall(r"torch\.cuda\.(?:memory\.)?(\w+_lms|reclaim_inactive)\b", page.text):
        if name not in public:
            yield f"{page.name}: torch.cuda.{name}: there is no such function"


@cache
def interface(root: Path) -> tuple[set[str], set[str]]:
    """The names of torch.cuda.lms, and those of its functions that are in torch.cuda, too."""
    path = root / "patches/runtime/torch/cuda/lms/__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names |= {file.stem for file in path.parent.iterdir()}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname for alias in node.names if alias.asname}
    (exported,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return names, set(exported)


def wrong_tests(page: Page) -> Iterator[str]:
    """Tests that are not there: FILE::TEST, or ::TEST after another one of the file."""
    file = ""
    for span in spans(page):
        found = TEST.fullmatch(span)
        if found is None or not any(found.groups()):
            continue
        file, test = found[1] or file, found[2]
        sources = [p.read_text(encoding="utf-8") for p in (page.root / "tests").rglob(file)]
        if not sources:
            yield f"{page.name}: {span}: there is no such file"
        elif test:
            end = r"\w*\(" if found[3] == "*" else r"\("
            if not any(re.search(rf"^def {test}{end}", text, re.MULTILINE) for text in sources):
                yield f"{page.name}: {span}: there is no such test"


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    assert list(wrong_links(page)) == []


@pytest.mark.parametrize("page", pages(ROOT, history=False), ids=lambda page: page.name)
def test_what_is_named_is_there(page: Page) -> None:
    checks = (wrong_commands, wrong_paths, wrong_names, wrong_tests)
    assert [wrong for check in checks for wrong in check(page)] == []


def test_readme_has_its_commands() -> None:
    """So that the test above does not pass because nothing was found."""
    commands = [line for line in lines(Page(ROOT, "README.md")) if line.startswith("make ")]
    assert len(commands) == 4
    guides = [page for page in pages(ROOT) if page.name.startswith("docs/how-to/")]
    shown = [line for page in guides for line in lines(page) if line.startswith("lmsbuild ")]
    assert len(shown) > 15


# --- tables ---------------------------------------------------------------------------------


def test_the_table_of_releases_is_what_the_command_prints() -> None:
    result = CliRunner().invoke(main, ["tags", "--markdown"])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2 + len(load_registry().tags)
    assert result.stdout in Page(ROOT, "docs/releases.md").text, (
        "docs/releases.md: replace its table by what `lmsbuild tags --markdown` prints"
    )


def test_readme_names_the_range_of_releases() -> None:
    versions = [".".join(tag.version.split(".")[:2]) for tag in load_registry()]
    second = [version for version in versions if version.startswith("2.")]
    old = [tag.version for tag in load_registry() if "graft" not in tag.strategies]
    text = " ".join(Page(ROOT, "README.md").text.split())
    assert f"{second[0]} to {second[-1]} and 1.13 as wheels" in text
    assert f"{old[0][:3]} to {old[-1][:3]} built from source" in text


def test_each_statistic_is_described() -> None:
    report = ROOT / "patches/runtime/torch/csrc/cuda/lms/api/report.cpp"
    names = re.findall(r'"lms\.(\w+)"', report.read_text(encoding="utf-8"))
    assert len(names) > 20
    text = Page(ROOT, "docs/reference/statistics.md").text
    assert [name for name in names if f"`{name}" not in text] == []


def printing_json(command: click.Command, name: str) -> Iterator[str]:
    """The commands with --json, by their names."""
    if isinstance(command, click.Group):
        for below in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), below)
            assert inner is not None
            yield from printing_json(inner, f"{name} {below}")
    elif "--json" in options_of(command):
        yield name


def test_each_json_object_is_described() -> None:
    rows = Page(ROOT, "docs/reference/command-line.md").text
    names = list(printing_json(main, "lmsbuild"))
    assert len(names) > 5
    assert [name for name in names if not re.search(rf"^\| `{name} .*--json`", rows, re.M)] == []
    (releases,) = re.findall(r"^\| `lmsbuild tags --json` .*", rows, re.M)
    for release in json.loads(CliRunner().invoke(main, ["tags", "--json"]).stdout):
        assert [key for key in release if f"`{key}`" not in releases] == []


def test_each_variable_is_described() -> None:
    path = ROOT / "patches/runtime/torch/cuda/lms/environment.py"
    variables = runpy.run_path(str(path))["VARIABLES"]
    lines = Page(ROOT, "docs/reference/environment.md").text.splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    wanted = [
        (f"`{each.name}`", f"`{each.option}`" if each.option else "always on") for each in variables
    ]
    assert [(row[0].strip(), row[-1].strip()) for row in rows] == wanted


def test_the_reference_is_what_is_generated() -> None:
    reference = load("reference")
    written = Page(ROOT, "docs/reference.md").text.splitlines()
    assert reference.page().splitlines() == written, "run python ci/reference.py"


# --- the checks themselves ------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """A page of a small project, which says nothing yet."""
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "Makefile", tmp_path)
    for path in ("patches/runtime/torch/cuda/lms/__init__.py", "tests/toolkit/cli/test_main.py"):
        (tmp_path / path).parent.mkdir(parents=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "README.md").write_text("# A title, and more\n\n## Twice\n\n## Twice\n")
    return Page(tmp_path, "docs/page.md")


@pytest.mark.parametrize(
    "text",
    [
        "    make wheel TAG=v2.6.0    # it's one\n    X=1 lmsbuild wheel [TAG] --arch ppc64le\n",
        "`lmsbuild -v channel add DIR PACKAGE…` and `lmsbuild\nwheel`",
        "[there](../README.md#a-title-and-more), [b](../README.md#twice-1), [h](#here)\n# Here",
        "[elsewhere](https://example.org/x#y), `[no](link)`",
        "`tests/toolkit/cli/test_main.py::test_version`, `::test_help_names_every_command`",
        "`torch.cuda.lms.stats()`, `torch.cuda.set_limit_lms(1)`, `torch.cuda.reclaim_inactive()`",
    ],
)
def test_what_is_right(page: Page, text: str) -> None:
    page.path.write_text(text)
    checks = (wrong_commands, wrong_links, wrong_paths, wrong_names, wrong_tests)
    assert [wrong for check in checks for wrong in check(page)] == []


@pytest.mark.parametrize(
    ("check", "text", "why"),
    [
        (wrong_commands, "    lmsbuild wheel --no-such\n", "No such option"),
        (wrong_commands, "    lmsbuild wheels\n", "there is no command wheels"),
        (wrong_commands, "    X=1 lmsbuild channel ad DIR   # comment\n", "there is no command ad"),
        (wrong_commands, "as `lmsbuild\nwheel --strategy magic` does", "'magic' is not"),
        (wrong_commands, "    lmsbuild --quite wheel\n", "there is no --quite"),
        (wrong_commands, "    lmsbuild verify A B\n", "unexpected extra argument"),
        (wrong_commands, "- a\n\n  ```console\n  $ lmsbuild tags --jso\n  ```\n", "--jso"),
        (wrong_commands, "    make wheels\n", "there is no target wheels"),
        (wrong_commands, "`make wheel TAGS=v2.6.0`", "the Makefile has no TAGS"),
        (wrong_links, "[a](nowhere.md)", "no such file"),
        (wrong_links, "[a](../README.md#nowhere)", "no such heading"),
        (wrong_links, "[a](#nowhere)", "no such heading"),
        (wrong_links, "[a](../README.md#twice-2)", "no such heading"),
        (wrong_paths, "    python tests/gpu/gone.py --out DIR\n", "no such file"),
        (wrong_paths, "`docs/*.txt`", "no such file"),
        (wrong_names, "`torch.cuda.lms.explains()`", "no such function"),
        (wrong_names, "```python\ntorch.cuda.set_limits_lms(1)\n```", "no such function"),
        (wrong_tests, "`test_main.py::test_gone`", "no such test"),
        (wrong_tests, "`test_main.py::test_version`, `::test_gone*`", "no such test"),
        (wrong_tests, "`test_gone.py`", "no such file"),
    ],
)
def test_what_is_wrong(page: Page, check: object, text: str, why: str) -> None:
    page.path.write_text(text)
    assert callable(check)
    (found,) = check(page)
    assert why in found
