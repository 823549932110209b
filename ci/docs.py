"""Builds the site of the documentation. A warning, such as for a broken link, is an error.

python ci/docs.py            # into build/site; begin at index.html
python ci/docs.py --man      # the manual page build/man/lmsbuild.1, too
python ci/docs.py --links    # also ask other sites for the pages that are linked to
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


def sphinx(builder: str, out: Path) -> int:
    """Run one of Sphinx's builders on docs/; returns its exit code."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    # From the beginning: a page also depends on others, and on what conf.py and its modules do.
    command += ["--fresh-env", "--builder", builder]
    command += ["--doctree-dir", str(BUILD / "doctrees" / builder)]
    return subprocess.run([*command, str(ROOT / "docs"), str(out)]).returncode


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=BUILD / "site", metavar="DIR")
    parser.add_argument("--man", action="store_true")
    parser.add_argument("--links", action="store_true", help="needs a network")
    options = parser.parse_args(arguments)
    code = sphinx("html", options.out)
    if code == 0:
        print(options.out / "index.html")
    if options.man:
        code |= sphinx("man", BUILD / "man")
    if options.links:
        code |= sphinx("linkcheck", BUILD / "links")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
