"""Compiles the upstream files that a release's hooks change: as they were, and patched.

    python ci/syntax.py SOURCE [TAG]
    python ci/syntax.py --debian       # the releases whose sources Debian packages

SOURCE is what `lmsbuild apply` takes: a checkout of the whole tree that you have, a bare
repository, a tarball or a URL. It is never changed: the patches go onto a copy of its commit. TAG
is needed unless SOURCE is a checkout that says which release it is.

Each C++ file is read by `g++ -fsyntax-only` twice, with the same options: as upstream has it, and
with the hooks. So is a file of one line for each header that they change, each source that names
such a header or lies beside it and includes it, and each source that ATen's generator writes
otherwise. Headers come from the tree itself; what a build would generate comes from the official
wheel, and CUDA's from NVIDIA's packages, as for the runtime. The files that the patches add are
compiled against this tree, too.

Exit code 1: a file does not compile patched, and did before, or it is one that the patches add; 3:
a file that the hooks change could not be checked, because upstream's own does not compile here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import filecmp
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from lmsbuild.checkout import origin
from lmsbuild.checkout.apply import apply
from lmsbuild.checkout.state import lms_commits
from lmsbuild.errors import LmsbuildError
from lmsbuild.native.compile import RUNTIME_SOURCES, flags
from lmsbuild.native.toolchain import Compiler, find_compiler
from lmsbuild.registry import Tag, load_registry
from lmsbuild.tools import git
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.download import Target
from lmsbuild.tools.fetch import fetch_wheel
from lmsbuild.wheel.header_packages import fetch_headers

sys.path.insert(0, str(Path(__file__).parent))

import debian_source

ROOT = Path(__file__).resolve().parent.parent
# Declarations for libraries whose headers are not on PyPI, for releases before 2.0.
SHIM = ROOT / "tests" / "v1" / "cuda_shim"
DEBIAN_SUITES = ("bookworm", "trixie")

ATEN = "aten/src/ATen"
# As cmake/Codegen.cmake calls it. Since 1.5 there is no THNN.h.
GENERATOR_INPUTS = (
    f"{ATEN}/Declarations.cwrap",
    "aten/src/THNN/generic/THNN.h",
    "aten/src/THCUNN/generic/THCUNN.h",
    f"{ATEN}/nn.yaml",
    f"{ATEN}/native/native_functions.yaml",
)
# Where a tree's own headers are included from, the innermost first.
INCLUDE_ROOTS = ("torch/csrc/api/include", "torch/lib", "aten/src", "")
# Where the wheel has them. TH and THC include files of their own folder by name only.
WHEEL_ROOTS = ("", "TH", "THC", "torch/csrc/api/include")
# Where submodules have theirs, if the checkout has submodules.
THIRD_PARTY = ("*", "*/include", "*/src", "*/*/include")
# Folders that a build does not compile as they are: a generator's input, ROCm, tests.
NOT_BUILT = {"templates", "hip", "test"}

SOURCES = (".cpp", ".cc", ".cxx")
HEADERS = (".h", ".hpp")
NEEDS_NVCC = (".cu", ".cuh")
_STANDARD = re.compile(r"^\s*set\(CMAKE_CXX_STANDARD (\d+)", re.MULTILINE)
_RUNTIME_FLAGS = re.compile(r'COMPILE_FLAGS "([^"]*)"')
_ERROR = re.compile(r"^.*?:\d+:(?:\d+:)? (?:fatal )?error: .*$", re.MULTILINE)


class Unable(Exception):
    """Nothing can be checked. The message says why."""


class Kind(enum.Enum):
    """Why a file is checked."""

    CHANGED = "changed by the hooks"
    USER = "include a changed header"
    GENERATED = "generated"
    ADDED = "added by the patches"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcome for one file.

    Attributes:
        path: in the tree.
        kind: why it was checked.
        before: the first errors of the unpatched file, none when it compiles; None when there is
            no such file or nothing to compile.
        after: the same of the patched one.
        elsewhere: what checks it, or would have to; empty for what is checked here.
    """

    path: str
    kind: Kind
    before: tuple[str, ...] | None = None
    after: tuple[str, ...] | None = None
    elsewhere: str = ""

    @property
    def broken(self) -> bool:
        return not self.before and bool(self.after)

    @property
    def compiles(self) -> bool:
        return self.after == () and not self.unchecked

    @property
    def unchecked(self) -> bool:
        """Whether upstream's own file does not compile here, so that nothing can be concluded."""
        return bool(self.before)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        if self.elsewhere:
            return self.path, "-", "-", f"not checked: {self.elsewhere}"
        if self.unchecked:
            assert self.before is not None
            return self.path, "fails", "-", f"not checked: {self.before[0]}"
        before = "-" if self.before is None else "ok"
        return self.path, before, "fails" if self.after else "ok", "; ".join(self.after or ())


@dataclass(frozen=True, kw_only=True)
class Against:
    """The headers that the trees are compiled against.

    Attributes:
        include: the official wheel's headers; None for none.
        cuda: folders with CUDA's headers.
        others: folders for what neither they nor the tree have: Python's headers, submodules.
    """

    include: Path | None = None
    cuda: tuple[Path, ...] = ()
    others: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The compiler's first errors for a file, and the files that it read."""

    errors: tuple[str, ...]
    files: frozenset[str]


class Tree:
    """Upstream's sources, with the hooks or without, and how they are compiled."""

    def __init__(self, root: Path, tag: Tag, compiler: Compiler, against: Against) -> None:
        self.root = root
        self.generated: Path | None = None
        self._tag = tag
        self._command = compiler.command
        self._against = against

    def compile(self, path: Path, *, extra: Sequence[str] = ()) -> Compiled:
        """Reads a file as the tree's own build would. Nothing is written but its dependencies."""
        with tempfile.TemporaryDirectory() as folder:
            needed = Path(folder, "needed")
            command = [
                *self._command,
                *flags(self._tag),
                f"-std=c++{self._standard()}",
                "-DUSE_CUDA",
                *extra,
                *self._includes(),
                # Warnings in upstream's code are no concern here.
                "-w",
                "-fsyntax-only",
                *("-MD", "-MT", "x", "-MF", str(needed)),
                str(path),
            ]
            done = subprocess.run(
                command,
                cwd=self.root,
                # _ERROR matches English messages.
                env={**os.environ, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                errors="replace",
            )
            files = needed.read_text("utf-8", "replace").split() if needed.exists() else []
        prefix = f"{self.root}{os.sep}"
        own = (file.removeprefix(prefix) for file in files if file.startswith(prefix))
        return Compiled(
            errors=self._errors(done.stderr) if done.returncode else (),
            files=frozenset(own),
        )

    def compile_header(self, path: str) -> Compiled:
        """A file of one line that includes the header, as its users do."""
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder, "unit.cpp")
            unit.write_text(f"#include <{_included_as(path)}>\n", "utf-8")
            return self.compile(unit)

    def compile_added(self, path: str) -> Compiled:
        """A file that the patches add. Those of the runtime have options of their own."""
        if not path.startswith(f"{RUNTIME_SOURCES}/"):
            return self.compile(self.root / path)
        build = self.root / RUNTIME_SOURCES / "lms.cmake"
        found = _RUNTIME_FLAGS.search(build.read_text("utf-8")) if build.is_file() else None
        own = found[1].split() if found else [f"-std=c++{self._tag.cxx_standard}"]
        return self.compile(self.root / path, extra=own)

    def _errors(self, text: str) -> tuple[str, ...]:
        """A compiler's first errors, without this machine's paths."""
        found = _ERROR.findall(text) or text.strip().splitlines()[:1] or ["no message"]
        text = "\n".join(found[:3])
        for folder in filter(None, (self.root, self.generated)):
            text = text.replace(f"{folder}{os.sep}", "")
        return tuple(text.splitlines())

    def _standard(self) -> int:
        """The C++ standard of the release. The runtime may use a newer one."""
        for name in ("CMakeLists.txt", "c10/CMakeLists.txt"):
            path = self.root / name
            found = _STANDARD.search(path.read_text("utf-8")) if path.is_file() else None
            if found:
                return int(found[1])
        return self._tag.cxx_standard

    def _includes(self) -> Iterator[str]:
        if self.generated:
            yield f"-I{self.generated}"
        # The tree's own folders come first, so that a hook's header is found before the wheel's.
        for name in reversed(INCLUDE_ROOTS):
            yield f"-I{self.root / name}"
        wheel = self._against.include
        official = [wheel / name for name in WHEEL_ROOTS] if wheel else []
        for folder in (*official, *self._against.cuda):
            yield from ("-isystem", str(folder))
        # Last, because a submodule may contain headers of a library of the system.
        for folder in (*third_party(self.root), *self._against.others, SHIM):
            yield from ("-idirafter", str(folder))


def _included_as(path: str) -> str:
    """The name of a header of the tree in #include."""
    (root, *_) = [root for root in INCLUDE_ROOTS if not root or path.startswith(f"{root}/")]
    return PurePosixPath(path).relative_to(root).as_posix()


def third_party(root: Path) -> list[Path]:
    """The folders with headers in the submodules of a tree."""
    found = (path for name in THIRD_PARTY for path in root.glob(f"third_party/{name}"))
    return sorted(path for path in found if path.is_dir())


def generate(python: str, tree: Path, into: Path) -> Path:
    """Runs ATen's generator of a release before 1.6; returns the folder with what it writes.

    Raises Unable.
    """
    folder = into / "ATen"
    (folder / "core").mkdir(parents=True)
    inputs = [path for path in (tree / name for name in GENERATOR_INPUTS) if path.exists()]
    options = ("--source-path", tree / ATEN, "--install_dir", folder)
    command = [str(part) for part in (python, tree / ATEN / "gen.py", *options, *inputs)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unable(f"{ATEN}/gen.py: {last.replace(f'{tree}{os.sep}', '')}")
    return folder


class Check:
    """One release: its tree without the hooks and with them."""

    def __init__(self, plain: Tree, patched: Tree, work: Path) -> None:
        self.plain = plain
        self.patched = patched
        self._work = work
        listed = _git(patched.root, "diff", "--name-status", "--no-renames", _base(patched.root))
        status = dict(reversed(line.split("\t", 1)) for line in listed.splitlines())
        self.changed = sorted(path for path, letter in status.items() if letter == "M")
        self.added = sorted(path for path, letter in status.items() if letter == "A")

    def rows(self) -> Iterator[Row]:
        # First, because the files that it writes may be included.
        generated = list(self._generated())
        yield from (self._changed(path) for path in self.changed)
        yield from generated
        yield from self._users()
        yield from self._added()

    def _changed(self, path: str) -> Row:
        kind, suffix = Kind.CHANGED, PurePosixPath(path).suffix
        if suffix in SOURCES:
            return self._compared(path, kind)
        if suffix in HEADERS:
            before, after = self.plain.compile_header(path), self.patched.compile_header(path)
            return Row(path=path, kind=kind, before=before.errors, after=after.errors)
        if suffix == ".py":
            before_, after_ = (_python(tree.root, path) for tree in (self.plain, self.patched))
            return Row(path=path, kind=kind, before=before_, after=after_)
        if suffix == ".cmake" or path.endswith("CMakeLists.txt"):
            return Row(path=path, kind=kind, elsewhere="tests/intree and tests/v1 run CMake")
        reason = "needs nvcc" if suffix in NEEDS_NVCC else "nothing here compiles it"
        return Row(path=path, kind=kind, elsewhere=reason)

    def _compared(self, path: str, kind: Kind) -> Row:
        before, after = (tree.compile(tree.root / path) for tree in (self.plain, self.patched))
        return Row(path=path, kind=kind, before=before.errors, after=after.errors)

    def _users(self) -> Iterator[Row]:
        """The sources that include a changed header, by its path or from its own folder."""
        headers = {path for path in self.changed if PurePosixPath(path).suffix in HEADERS}
        if not headers:
            return
        names = {path: _included_as(path) for path in headers}
        pattern = "|".join(re.escape(name) for name in names.values())
        listed = _git(self.plain.root, "ls-files", "-z").split("\0")
        folders = {PurePosixPath(path).parent for path in headers}
        for path in sorted(listed):
            pure, file = PurePosixPath(path), self.plain.root / path
            if pure.suffix not in SOURCES or path in self.changed:
                continue
            if NOT_BUILT & set(pure.parts):
                continue
            text = file.read_text("utf-8", "replace")
            named = re.search(rf'#\s*include\s*[<"](?:{pattern})[>"]', text)
            if not named and pure.parent not in folders:
                continue
            before = self.plain.compile(file)
            if named or before.files & headers:
                after = self.patched.compile(self.patched.root / path)
                yield Row(path=path, kind=Kind.USER, before=before.errors, after=after.errors)

    def _generated(self) -> Iterator[Row]:
        """The sources that ATen's generator writes differently with the hooks."""
        written_by = [path for path in self.changed if path.startswith(f"{ATEN}/")]
        inputs = [
            path
            for path in written_by
            if path.endswith((".py", ".yaml", ".cwrap")) or path.startswith(f"{ATEN}/templates/")
        ]
        if not inputs or not (self.plain.root / ATEN / "gen.py").is_file():
            return
        for tree, name in ((self.plain, "plain"), (self.patched, "patched")):
            try:
                folder = generate(sys.executable, tree.root, self._work / "generated" / name)
            except Unable as error:
                errors = (str(error),)
                at = "before" if tree is self.plain else "after"
                yield dataclasses.replace(
                    Row(path=f"{ATEN}/gen.py", kind=Kind.GENERATED, before=()), **{at: errors}
                )
                return
            tree.generated = folder.parent
        assert self.plain.generated
        assert self.patched.generated
        for file in sorted(self.patched.generated.rglob("*")):
            path = file.relative_to(self.patched.generated)
            former = self.plain.generated / path
            if file.suffix not in SOURCES or (
                former.is_file() and filecmp.cmp(former, file, shallow=False)
            ):
                continue
            yield Row(
                path=f"(generated) {path.as_posix()}",
                kind=Kind.GENERATED,
                before=self.plain.compile(former).errors if former.is_file() else None,
                after=self.patched.compile(file).errors,
            )

    def _added(self) -> Iterator[Row]:
        for path in self.added:
            suffix = PurePosixPath(path).suffix
            if suffix in SOURCES:
                errors = self.patched.compile_added(path).errors
            elif suffix == ".py":
                errors = _python(self.patched.root, path)
            else:
                continue  # a header is compiled with its sources
            yield Row(path=path, kind=Kind.ADDED, after=errors)


def _python(root: Path, path: str) -> tuple[str, ...]:
    """Python's syntax error for a file, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile((root / path).read_bytes(), path, "exec")
    except SyntaxError as error:
        return (f"{path}:{error.lineno}: {error.msg}",)
    return ()


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True)
    if done.returncode:
        raise Unable(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def _base(patched: Path) -> str:
    """The commit below the patches."""
    with git.session(), git.opened(patched) as repo:
        return f"HEAD~{len(lms_commits(repo))}"


def check(
    tag: Tag, given: str, against: Against, work: Path, *, patches: Path | None = None
) -> Check:
    """Makes both trees of a source in the folder ``work``. Raises LmsbuildError."""
    patched = work / "patched"
    url = "" if patches else load_registry().upstream_url
    apply(tag, upstream_url=url, given_source=given, into=patched, patches=patches)
    plain = work / "plain"
    _git(patched, "worktree", "add", "--quiet", "--detach", str(plain), _base(patched))
    compiler = find_compiler(tag.architectures[0])
    trees = [Tree(root, tag, compiler, against) for root in (plain, patched)]
    return Check(trees[0], trees[1], work)


def report(tag: Tag, rows: Iterable[Row]) -> int:
    """Prints the table; returns the exit code."""
    rows = list(rows)
    shown = [row for row in rows if row.kind is not Kind.ADDED or row.broken]
    table = [("file", "unpatched", "patched", ""), *(row.cells for row in shown)]
    widths = [max(len(line[column]) for line in table) for column in range(3)]
    for line in table:
        print("  ".join([*map(str.ljust, line[:3], widths), line[3]]).rstrip())
    counts = []
    for kind in Kind:
        of_kind = [row for row in rows if row.kind is kind]
        compile_ = sum(row.compiles for row in of_kind)
        counts += [f"{kind.value}: {compile_} of {len(of_kind)}"] if of_kind else []
    print(f"{tag.name}: compile patched: {'; '.join(counts)}", flush=True)
    broken = [row for row in rows if row.broken]
    for row in broken[:1]:
        assert row.after
        more = f" (and {len(broken) - 1} more)" if broken[1:] else ""
        print(f"syntax: {row.path} does not compile patched: {row.after[0]}{more}", file=sys.stderr)
    if broken:
        return 1
    required = [row for row in rows if row.unchecked and row.kind is not Kind.USER]
    for row in required[:1]:
        print(f"syntax: {row.path} could not be checked: its unpatched file fails", file=sys.stderr)
    return 3 if required else 0


def release_of(given: str) -> Tag:
    """The release that a checkout says it is. Raises Unable."""
    chosen = origin.classify(given)
    names: list[str] = []
    if chosen.kind is origin.Kind.CHECKOUT:
        with git.session(), git.opened(chosen.path) as repo:
            names = git.tags_at_head(repo)
            version = origin.version_at_head(repo)
        # The version of a release branch is X.Y.0a0, that of the branch's beginning.
        with contextlib.suppress(InvalidVersion):
            names += [f"v{Version(version or '').base_version}"]
    known = {tag.name: tag for tag in load_registry()}
    for name in names:
        if name in known:
            return known[name]
    raise Unable(f"{given} does not say which release it is: name its TAG")


@contextlib.contextmanager
def official(tag: Tag, torch: Path | None, others: Iterable[Path] = ()) -> Iterator[Against]:
    """Headers of the official wheel, or of ``torch``, and CUDA's. Raises LmsbuildError."""
    target = Target(architecture=tag.architectures[0], python=tag.pythons[-1])
    cache = default_cache()
    packages = fetch_headers(tag, target, cache, lambda *_: None).values()
    cuda = tuple(path for one in packages for path in sorted(one.path.glob("nvidia/*/include")))
    with tempfile.TemporaryDirectory() as folder:
        if torch is None:
            wheel = fetch_wheel(f"torch=={tag.version}", target, cache)
            with zipfile.ZipFile(wheel.path) as archive:
                headers = [n for n in archive.namelist() if n.startswith("torch/include/")]
                archive.extractall(folder, headers)
            torch = Path(folder, "torch")
        yield Against(include=torch / "include", cuda=cuda, others=tuple(others))


def run(tag: Tag, given: str, torch: Path | None = None, headers: Iterable[Path] = ()) -> int:
    # The copy has no submodules.
    others = [*headers, *third_party(Path(given)), Path(sysconfig.get_path("include"))]
    with official(tag, torch, others) as against, tempfile.TemporaryDirectory() as folder:
        return report(tag, check(tag, given, against, Path(folder)).rows())


def run_debian() -> int:
    """The releases whose sources Debian has. Reports it if there is no mirror."""
    code = 0
    for suite in DEBIAN_SUITES:
        try:
            folder = default_cache() / f"debian-{suite}"
            mirror = debian_source.find_mirror()
            tarball = debian_source.fetch("pytorch", suite, folder, mirror)
        except debian_source.Unavailable as error:
            print(f"skipped: {suite}: {error}", flush=True)
            continue
        version = tarball.name.partition("_")[2].partition("+")[0]
        code = max(code, run(load_registry().get(version), str(tarball)), key=_gravity)
    return code


def _gravity(code: int) -> int:
    return {0: 0, 3: 1}.get(code, 2)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", help="checkout, bare repository, tarball or URL")
    parser.add_argument("tag", nargs="?", help="the release, if the source does not say")
    parser.add_argument(
        "--debian", action="store_true", help="check all releases whose sources Debian has"
    )
    parser.add_argument("--torch", type=Path, help="folder of the official torch, installed")
    parser.add_argument(
        "--headers",
        type=Path,
        action="append",
        default=[],
        help="folder with other headers, such as those of a Python that the release knows",
    )
    options = parser.parse_args(arguments)
    if options.debian == bool(options.source):
        parser.error("name a SOURCE, or --debian")
    try:
        if options.debian:
            return run_debian()
        named = options.tag and load_registry().get(options.tag)
        tag = named or release_of(options.source)
        return run(tag, options.source, options.torch, options.headers)
    except (LmsbuildError, Unable) as error:
        print(f"syntax: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
