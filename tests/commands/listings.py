"""The programs that the commands run: those that pages show, and a user's."""

from __future__ import annotations

import re

from pages import ROOT

# A program of a user's: what its options say is in its output.
TRAIN = """\
if __name__ == "__main__":
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    print("LMS", torch.cuda.get_enabled_lms(), torch.cuda.get_limit_lms())
"""
PAGES_IMPORTS = "import torch\nimport torchvision\n\n\n"
# As a program it needs no torchvision: not every torch here has one.
IMPORTS = "import torch\n\nif __name__ != '__main__':\n    import torchvision\n\n\n"


def blocks_of(page: str) -> list[str]:
    """The blocks of Python code of a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def train() -> str:
    """train.py: the module that docs/simulation.md shows, as a program."""
    found = blocks_of("docs/simulation.md")
    (block,) = (code for code in found if code.startswith("# train.py\n"))
    assert PAGES_IMPORTS in block
    return f"{IMPORTS}{block.replace(PAGES_IMPORTS, '')}\n\n{TRAIN}"


def fit() -> tuple[str, str]:
    """fit.py of docs/tutorial.md: without LMS, and with the line that turns it on."""
    program, enable, *_ = blocks_of("docs/tutorial.md")
    imports = "from torch import nn\n"
    assert imports in program
    assert enable == "torch.cuda.set_enabled_lms(True)\n"
    return program, program.replace(imports, imports + enable)
