"""Run cibuildwheel, which builds wheels in containers.

Its only interface is the command line. The schema of its configuration and its list of images are
data files of its package.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild._compat import tomllib
from lmsbuild.errors import BuildConfigError, BuilderError, NoIdentifierError, SourceBuildError

_MODULE = "cibuildwheel"


@dataclass(frozen=True, kw_only=True)
class Builder:
    """The cibuildwheel that is installed beside lmsbuild.

    Attributes:
        version: such as "4.3.3".
        resources: folder of its data.
    """

    version: str
    resources: Path

    def check_config(self, text: str) -> None:
        """Validate a configuration with cibuildwheel's own schema. Raises BuildConfigError."""
        import jsonschema

        table = tomllib.loads(text)["tool"]["cibuildwheel"]
        schema = json.loads((self.resources / "cibuildwheel.schema.json").read_text("utf-8"))
        violation = jsonschema.exceptions.best_match(
            jsonschema.validators.validator_for(schema)(schema).iter_errors(table)
        )
        if violation is not None:
            raise BuildConfigError(
                f"cibuildwheel {self.version} does not accept lmsbuild's configuration:"
                f" {violation.json_path}: {violation.message}"
            )

    def image(self, name: str, architecture: str) -> str:
        """The image that cibuildwheel uses for a name like "manylinux_2_28", otherwise the name."""
        pinned = configparser.ConfigParser(inline_comment_prefixes=("#",))
        pinned.read(self.resources / "pinned_docker_images.cfg", encoding="utf-8")
        return pinned.get(architecture, name, fallback=name)

    def require(self, identifier: str, config: str, advice: str) -> None:
        """Check that the configuration builds exactly this wheel.

        cibuildwheel itself reports no error if it builds none. ``advice`` ends the error message.

        Raises:
            NoIdentifierError: it would build no wheel, or another one.
        """
        with tempfile.TemporaryDirectory(prefix="lmsbuild-") as name:
            project = Path(name)
            (project / "pyproject.toml").touch()
            (project / "config.toml").write_text(config, encoding="utf-8")
            done = subprocess.run(
                [
                    *self.command(identifier, project / "config.toml"),
                    "--print-build-identifiers",
                    str(project),
                ],
                capture_output=True,
                text=True,
                env=_environment(),
            )
        if done.stdout.split() != [identifier]:
            raise NoIdentifierError(
                f"cibuildwheel {self.version} cannot build {identifier}; {advice}",
                detail=done.stdout + done.stderr,
            )

    def command(self, identifier: str, config: Path) -> list[str]:
        """The command line that builds one wheel."""
        return [
            *(sys.executable, "-m", _MODULE),
            *("--only", identifier),
            *("--config-file", str(config)),
        ]

    def build(self, identifier: str, config: Path, project: Path, out: Path) -> Path:
        """Build one wheel of a project. cibuildwheel's output goes to standard error.

        Raises:
            SourceBuildError: it failed, or wrote no wheel.
        """
        before = {path: path.stat().st_mtime_ns for path in out.glob("*.whl")}
        done = subprocess.run(
            [*self.command(identifier, config), "--output-dir", str(out), "."],
            cwd=project,
            stdout=sys.stderr,
            env=_environment(),
        )
        made = [path for path in out.glob("*.whl") if before.get(path) != path.stat().st_mtime_ns]
        if done.returncode or len(made) != 1:
            raise SourceBuildError(
                f"cibuildwheel built no wheel of {project} (exit code {done.returncode}); the"
                " reason is in its output above"
            )
        return made[0]


def find_builder(advice: str) -> Builder:
    """The cibuildwheel of this Python. Raises BuilderError, whose message ends with ``advice``."""
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise BuilderError(f"cibuildwheel is not installed; {advice}")
    resources = Path(spec.submodule_search_locations[0]) / "resources"
    if not (resources / "cibuildwheel.schema.json").is_file():
        raise BuilderError(f"this cibuildwheel has no schema of its configuration; {advice}")
    return Builder(version=importlib.metadata.version(_MODULE), resources=resources)


def config_text(settings: Mapping[str, str | list[str]], environment: Mapping[str, str]) -> str:
    """A configuration file for a build on Linux."""
    # In JSON, strings and lists of strings are written as in TOML.
    lines = ["[tool.cibuildwheel]"]
    lines += [f"{key} = {_toml(value)}" for key, value in settings.items()]
    lines += ["", "[tool.cibuildwheel.linux.environment]"]
    lines += [f"{key} = {_toml(value)}" for key, value in environment.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _environment() -> dict[str, str]:
    """Without CIBW_ variables, which would override the configuration that was checked."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CIBW_")}
