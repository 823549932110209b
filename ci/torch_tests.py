"""Builds LMS wheels and runs the tests that need a torch on them, on a simulated GPU.

    python ci/torch_tests.py                       # the oldest, the newest and the default tag
    python ci/torch_tests.py --default             # only the default tag
    python ci/torch_tests.py --oldest              # only the oldest tag; also --newest
    python ci/torch_tests.py TAG ...               # these tags, with every test
    python ci/torch_tests.py --matrix TABLE.md     # every tag; the table says what came out
    python ci/torch_tests.py --programs N          # N random programs on each, and the threads

The default tag gets every test, a part of them with sanitizers, and the commands of the
documentation. The others get the tests of the runtime that depend on the tag, and a part of the
out-of-memory suite. Of the CUDA calls that the tests make fail, fewer fail there
(LMS_FAULTS=few). On the newest tag, the runtime's tests run with compression.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.version import Version

from lmsbuild.errors import LmsbuildError, SuiteError
from lmsbuild.registry import Registry, Tag, load_registry
from lmsbuild.resources import tests_dir
from lmsbuild.tools.cache import default_cache
from lmsbuild.tools.cache_content import in_use
from lmsbuild.wheel.suite import Device, run_suite

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = ("pytest", "expecttest", "hypothesis")
LANDMARKS = ("default", "oldest", "newest")
# The first release that knows NumPy 2.
NUMPY2 = Version("2.3")
# Triton's interpreter converts arrays with one element to numbers, which NumPy 2.4 refuses.
NUMPY = "numpy<2.4"
QUIET = ("-q", "-ra")
RUNTIME, SUITE = ("runtime", *QUIET), ("suite", *QUIET)
EVERYTHING = (("simcuda", *QUIET), RUNTIME, (*SUITE, "--durations=5"))
EXAMPLES = ("examples", *QUIET, "--durations=5")
COMMANDS = ("commands", *QUIET, "--durations=5")
# They are of lmsbuild, as `pip install '.[conda,plot]'` installs it.
TOOLKIT = f"lmsbuild[conda,plot] @ {ROOT.as_uri()}"
# What docs/examples and its tests import, beside the companions.
EXAMPLE_PACKAGES = (
    "ipykernel",
    "lightning-utilities",
    "matplotlib",
    "nbclient",
    "psutil",
    "pyyaml",
    "tensorboard",
    "tqdm",
    "transformers",
)
COMPANIONS = ("accelerate", "lightning", "pytorch-lightning", "timm", "torchmetrics")
PART = ((*RUNTIME, "-m", "not any_tag"), (*SUITE, "-k", "resnet"))
LARGER_PART = (RUNTIME, (*SUITE, "-k", "resnet or gpt"))
SANITIZED = {
    # `make sanitizers` runs all tests, which takes hours.
    "address": ("test_lifetime.py",),
    "thread": ("test_races.py",),
}
RANDOM = (("runtime/test_programs.py", *QUIET), ("runtime/test_threads.py", *QUIET))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of one tag: seconds, bytes, numbers of tests, and why it failed, if it did."""

    tag: str
    build_seconds: float = 0.0
    wheel_bytes: int = 0
    test_seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failure: str = ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tags", nargs="*", metavar="TAG")
    part = parser.add_mutually_exclusive_group()
    for name in LANDMARKS:
        part.add_argument(f"--{name}", action="store_true", help=f"only the {name} tag")
    part.add_argument("--matrix", type=Path, metavar="TABLE.md", help="every tag, into a table")
    parser.add_argument("--programs", type=int, metavar="N", help="run N random programs")
    options = parser.parse_args(arguments)
    if options.programs:
        os.environ["LMS_PROGRAMS"] = str(options.programs)
    if options.tags and (options.matrix or landmark_of(options)):
        parser.error("name tags, or ask for the matrix, or for the default, oldest or newest tag")
    with in_use(default_cache()):
        return try_tags(options)


def try_tags(options: argparse.Namespace) -> int:
    registry = load_registry()
    outcomes = []
    tags = chosen(registry, options.tags, matrix=bool(options.matrix))
    if landmark := landmark_of(options):
        tags = landmarks(registry, tags)[landmark]
    newest = [tag for tag in registry if tag.has_wheel(PYTHON)][-1]
    faults = os.environ.get("LMS_FAULTS", "")
    for tag in tags:
        os.environ["LMS_TEST_COMPRESSION"] = "on" if tag == newest else "off"
        suites = runs(tag, registry, options)
        os.environ["LMS_FAULTS"] = faults or ("few" if suites == PART else "some")
        outcomes.append(try_tag(tag, suites))
        if outcomes[-1].failure:
            print(outcomes[-1].failure, flush=True)
        if options.matrix:
            # After each tag, so that results are not lost if a later one takes too long.
            options.matrix.parent.mkdir(parents=True, exist_ok=True)
            options.matrix.write_text("\n".join(table(outcomes)) + "\n", encoding="utf-8")
    if options.matrix:
        print(options.matrix.read_text(encoding="utf-8"), end="", flush=True)
    failed = [outcome.tag for outcome in outcomes if outcome.failure]
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return bool(failed)


def landmark_of(options: argparse.Namespace) -> str:
    """The one of LANDMARKS that was asked for, or nothing."""
    return next((name for name in LANDMARKS if getattr(options, name)), "")


def landmarks(registry: Registry, tags: Sequence[Tag]) -> dict[str, list[Tag]]:
    """The tag, if there is one, that each of LANDMARKS stands for. None stands for two."""
    others = [tag for tag in tags if tag != registry.default]
    return {
        "default": [tag for tag in tags if tag == registry.default],
        "oldest": others[:1],
        "newest": others[1:][-1:],
    }


def chosen(registry: Registry, names: Iterable[str], *, matrix: bool) -> list[Tag]:
    """The tags to test. Tags without a wheel for this Python are reported and left out."""
    tags = [registry.get(name) for name in names]
    if not tags:
        tags = list(registry) if matrix else list(registry.landmarks(PYTHON))
    for tag in tags:
        if not tag.has_wheel(PYTHON):
            print(f"skipped: {tag.name} has no wheel for Python {PYTHON}", flush=True)
    # The default tag comes last, so that its summary, the longest, stays on the screen.
    return sorted(
        (tag for tag in tags if tag.has_wheel(PYTHON)), key=lambda tag: tag == registry.default
    )


def runs(tag: Tag, registry: Registry, options: argparse.Namespace) -> tuple[tuple[str, ...], ...]:
    if options.programs:
        return RANDOM
    if options.matrix:
        return LARGER_PART
    if not options.tags and tag != registry.default:
        return PART
    if Version(tag.version).major < 2:
        return EVERYTHING
    return (*EVERYTHING, EXAMPLES, *((COMMANDS,) if tag == registry.default else ()))


def packages(tag: Tag) -> tuple[str, ...]:
    """The packages that the tests need in addition to torch."""
    return (*PACKAGES, NUMPY if Version(tag.version) >= NUMPY2 else "numpy<2")


def triton(wheel: Path) -> tuple[str, ...]:
    """The Triton that torch requires. Without it, tests of compiled code are skipped."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    required = (line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: "))
    return tuple(f"{r.name}{r.specifier}" for r in map(Requirement, required) if r.name == "triton")


def companions(tag: Tag) -> tuple[str, ...]:
    """Packages that require torch. torchvision 0.15 was released with 2.0, 0.16 with 2.1, …"""
    return *COMPANIONS, f"torchvision==0.{Version(tag.version).minor + 15}.*"


def install_companions(python: Path, tag: Tag) -> None:
    """Without what they require: pip would go on to torch's own requirements, 3 GB for GPUs."""
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--no-compile"]
    pip += ["--disable-pip-version-check", "--no-deps", *companions(tag)]
    if subprocess.run(pip).returncode:
        raise SuiteError("what the examples need does not install; pip's output is above")


def sanitize(python: Path) -> None:
    """Runs the tests of memory and of threads, each with its sanitizer."""
    for sanitizer, tests in SANITIZED.items():
        paths = [str(ROOT / "tests" / "runtime" / test) for test in tests]
        script = str(ROOT / "ci" / "sanitizers.py")
        if subprocess.run([sys.executable, script, str(python), sanitizer, *paths]).returncode:
            raise SuiteError(f"the {sanitizer} sanitizer's run failed; its reports are above")


def remove_wheels(folder: Path) -> None:
    """Remove what was built earlier, for another Python or with another name."""
    for old in folder.glob("*.whl"):
        old.unlink()


def try_tag(tag: Tag, suites: Sequence[Sequence[str]]) -> Outcome:
    begun = time.monotonic()
    everything, examples = set(suites) >= set(EVERYTHING), EXAMPLES in suites
    folder = ROOT / "build" / "wheels" / tag.name
    remove_wheels(folder)
    build = [sys.executable, "-m", "lmsbuild", "wheel", tag.name, "--out", str(folder)]
    code = subprocess.run([*build, "--python", PYTHON]).returncode
    built = time.monotonic()
    if code:
        failure = f"the wheel of {tag.name} cannot be built (lmsbuild says {code})"
        return Outcome(tag=tag.name, build_seconds=built - begun, failure=failure)
    # Printed before the tests run, so that pytest's closing line stays the last one.
    print(f"{tag.name}: built in {built - begun:.0f} s", flush=True)
    (wheel,) = folder.glob("*.whl")
    needed = packages(tag)
    needed += (triton(wheel) if everything else ()) + (EXAMPLE_PACKAGES if examples else ())
    needed += (TOOLKIT,) if COMMANDS in suites else ()

    def prepare(python: Path) -> None:
        if examples:
            install_companions(python, tag)
        if everything:
            sanitize(python)

    failure = ""
    with TemporaryDirectory() as name:
        reports = [Path(name) / f"{number}.xml" for number, _ in enumerate(suites)]
        reported = [
            (*suite, f"--junitxml={path}") for suite, path in zip(suites, reports, strict=True)
        ]
        try:
            run_suite(
                wheel,
                Device.SIMULATED,
                tests_dir(),
                default_cache(),
                print,
                reported,
                needed,
                prepare,
            )
        except LmsbuildError as error:
            failure = str(error)
        passed, failed, skipped = count(reports)
    return Outcome(
        tag=tag.name,
        build_seconds=built - begun,
        wheel_bytes=wheel.stat().st_size,
        test_seconds=time.monotonic() - built,
        passed=passed,
        failed=failed,
        skipped=skipped,
        failure=failure,
    )


def count(reports: Iterable[Path]) -> tuple[int, int, int]:
    """How many tests passed, failed (errors included) and were skipped, from JUnit reports."""
    passed = failed = skipped = 0
    for report in reports:
        if not report.is_file():
            continue  # pytest did not get as far as writing one, and run_suite says so
        for suite in xml.parse(report).iter("testsuite"):
            bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            left = int(suite.get("skipped", 0))
            passed += int(suite.get("tests", 0)) - bad - left
            failed += bad
            skipped += left
    return passed, failed, skipped


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """The results as Markdown. A build is short if its library or base wheel was in the cache."""
    rows = [
        [
            outcome.tag,
            f"{outcome.wheel_bytes / 1e6:.0f} MB" if outcome.wheel_bytes else "-",
            f"{outcome.build_seconds:.0f} s",
            str(outcome.passed),
            str(outcome.failed),
            str(outcome.skipped),
            f"{outcome.test_seconds:.0f} s",
            outcome.failure or "ok",
        ]
        for outcome in outcomes
    ]
    headings = ["Tag", "Wheel", "Build", "Passed", "Failed", "Skipped", "Tests took", "Result"]
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
