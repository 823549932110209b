"""With this folder on PYTHONPATH every Python process has a simulated device when it imports torch.

SIMCUDA_AUTO holds simcuda.start()'s options: "devices=2 mib=2048 race=0".
"""

import os
import sys
from pathlib import Path

if os.environ.get("SIMCUDA_AUTO"):
    sys.path.append(str(Path(__file__).resolve().parent.parent))

    from simcuda.device import start_at_import

    start_at_import(
        **{
            name: int(value)
            for name, value in (part.split("=") for part in os.environ["SIMCUDA_AUTO"].split())
        }
    )
