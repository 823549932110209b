"""The recipes of a package, for conda-build and for rattler-build."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from lmsbuild.conda import extra
from lmsbuild.conda.metadata import Metadata

STAGE = "stage"  # the files, beside the folder of the recipes, which packagers put into the package
FOLDER = "recipe"  # of the recipes, if there is one package
CONDA_BUILD = "meta.yaml"
RATTLER_BUILD = "recipe.yaml"
_DATA = "package.json"


def write_recipes(
    metadata: Metadata, licenses: Mapping[str, Path], templates: Path, into: Path
) -> None:
    """Write both recipes of a package into a new folder. Its files are beside it, in ``stage``.

    ``templates`` contains meta.yaml and recipe.yaml. meta.yaml is copied, because it lets
    conda-build read the metadata from package.json. recipe.yaml is a template. ``licenses`` are
    copied: by the names in ``metadata``, their paths.

    Raises:
        PackagerError: jinja2 is not installed.
    """
    into.mkdir()
    for name, path in licenses.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, into / name)
    document = metadata.document()
    (into / _DATA).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (into / CONDA_BUILD).write_text(_text(templates / CONDA_BUILD), encoding="utf-8")
    environment = extra.require("jinja2").Environment(
        line_statement_prefix="#%",
        variable_start_string="${{",
        variable_end_string="}}",
        comment_start_string="{##",  # YAML has its own
        comment_end_string="##}",
        undefined=extra.require("jinja2").StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    text = environment.from_string(_text(templates / RATTLER_BUILD)).render(document)
    (into / RATTLER_BUILD).write_text(text, encoding="utf-8")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
