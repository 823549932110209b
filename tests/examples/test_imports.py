"""What LMS imports of other libraries: nothing. They are all installed here."""

from __future__ import annotations

import subprocess
import sys

from conftest import environment

TRAIN = """
import sys
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    model(torch.ones(2048, 512, device="cuda")).sum().backward()
    optimizer.step()

train()
before = set(sys.modules)
torch.cuda.set_limit_lms(16 << 20)
torch.cuda.set_enabled_lms(True)
train()
assert torch.cuda.lms.stats()["page_out_count"] > 0
assert torch.cuda.lms.explain().startswith("LMS pages out")
print(*sorted(set(sys.modules) - before))
"""


def test_lms_imports_no_other_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], env=environment(64), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    packages = {name.split(".")[0] for name in done.stdout.split()}
    assert packages <= {"torch", *sys.stdlib_module_names}
    assert "torch.cuda.lms.integrations" not in done.stdout
