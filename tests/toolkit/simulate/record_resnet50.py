"""Records resnet50.json.gz, on the simulated device.

    PYTHONPATH=tests/simcuda/auto SIMCUDA_AUTO="devices=1 mib=8000" \
        PYTHON tests/toolkit/simulate/record_resnet50.py

PYTHON has a torch with LMS, and torchvision. The device has the times of this machine's processor.
"""

from pathlib import Path

import torch
import torchvision

BATCH, SIDE = 4, 112

torch.cuda.set_size_lms(1 << 16)
torch.cuda.set_enabled_lms(True)
torch.cuda.lms._watch()
model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)


def train() -> None:
    images = torch.randn(BATCH, 3, SIDE, SIDE).cuda()
    labels = torch.randint(1000, (BATCH,)).cuda()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


train()
train()
with torch.cuda.lms.record(Path(__file__).with_name("resnet50.json.gz")):
    for _ in range(2):
        train()
