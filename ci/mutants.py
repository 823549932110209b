"""Plants each bug of mutants.toml in the runtime and checks that its test sees it.

    python ci/mutants.py PYTHON [NAME_PART ...]

PYTHON is an interpreter whose torch has LMS and is disposable: its libtorch_lms.so is replaced by
each mutant's, and by the true one at the end. Exits 1 if a bug is not seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lmsbuild import compile
from lmsbuild.cache import default_cache
from lmsbuild.download import Target
from lmsbuild.graft import fetch_headers
from lmsbuild.registry import load_registry
from lmsbuild.toolchain import find_compiler

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "patches" / "runtime"
SOURCES = "torch/csrc/cuda/lms"
SECONDS = 300  # a deadlock is a bug that was seen


def main(python: str, wanted: list[str]) -> int:
    # Without a GPU's libraries torch cannot be imported here.
    ask = (
        "import importlib.util as u, runpy; p = u.find_spec('torch').submodule_search_locations[0];"
        "print(p, runpy.run_path(p + '/version.py')['__version__'])"
    )
    told = subprocess.run([python, "-c", ask], check=True, stdout=subprocess.PIPE, text=True)
    folder, version = told.stdout.split()
    torch = Path(folder)
    tag = load_registry().get(version.split("+")[0])
    compiler = find_compiler("x86_64")
    target = Target(architecture="x86_64", python=f"{sys.version_info[0]}.{sys.version_info[1]}")
    headers = fetch_headers(tag, target, default_cache(), lambda *_: None)
    cuda = tuple(found.path for found in headers.values())
    library = torch / "lib" / compile.LIBRARY
    mutants = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())["mutant"]
    missed = []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        true_library = work / "true.so"
        shutil.copy(library, true_library)
        try:
            for mutant in mutants:
                if wanted and not any(part in mutant["name"] for part in wanted):
                    continue
                runtime = work / "runtime"
                shutil.rmtree(runtime, ignore_errors=True)
                shutil.copytree(RUNTIME, runtime)
                plant(mutant, runtime / SOURCES)
                built = compile.build_library(
                    tag,
                    compiler,
                    compile.Inputs(torch=torch, cuda=cuda, runtime=runtime),
                    work / "objects",
                    policy=None,
                    log=work / "log",
                )
                library.unlink()
                shutil.copy(built, library)
                seen = fails(python, mutant["test"], runtime)
                print(f"{'seen  ' if seen else 'MISSED'}  {mutant['name']}", flush=True)
                if not seen:
                    missed.append(mutant["name"])
        finally:
            library.unlink(missing_ok=True)
            shutil.copy(true_library, library)
    print(f"{len(missed)} bugs were not seen")
    return bool(missed)


def plant(mutant: dict[str, str], sources: Path) -> None:
    file = sources / mutant["file"]
    text = file.read_text()
    if text.count(mutant["find"]) != 1:
        sys.exit(f"mutants.toml: {mutant['name']}: the text to find stands not once in {file.name}")
    file.write_text(text.replace(mutant["find"], mutant["replace"]))


def fails(python: str, test: str, runtime: Path) -> bool:
    path = ROOT / "tests" / "runtime" / test
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LMS_RUNTIME": str(runtime)}
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)  # 5: no test ran


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
