"""fit.ipynb: what is committed, and what its cells say when they are run."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from conftest import EXAMPLES, environment
from nbclient import NotebookClient

NOTEBOOK = EXAMPLES / "fit.ipynb"
SMALL = 'MODEL = "resnet18"\nBATCH_SIZE = 8\nIMAGE_SIZE = 64\nSTEPS = 3'


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    found = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    nbformat.validate(found)
    return found


def test_it_has_no_outputs_of_a_machine(notebook: nbformat.NotebookNode) -> None:
    assert nbformat.writes(notebook).rstrip() == NOTEBOOK.read_text().rstrip()
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


def test_it_fits_what_does_not_fit(
    notebook: nbformat.NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parameters,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", ()))
    parameters.source = SMALL
    for name, value in environment(mib=256).items():
        monkeypatch.setitem(os.environ, name, value)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = {
        cell.id: "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
    assert "CUDA out of memory" in printed["out-of-memory"]
    assert "losses: identical" in printed["lms"]
    assert "LMS pages out" in printed["explain"]
    (drawn,) = (cell for cell in notebook.cells if cell.id == "draw")
    assert "image/png" in drawn.outputs[-1].data
