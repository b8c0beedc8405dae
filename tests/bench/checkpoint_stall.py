"""What a checkpoint costs the step: in the background, in the foreground, and on a GPU if there is one.

    python -m tests.bench.checkpoint_stall --gib 4 --out FOLDER

One process holds weights and AdamW's two moments, `gib` in all, and makes steps of matrix products that change every
weight. Reported are a step without a checkpoint, the longest step that begins one, the time until it is on the disk,
and the same written in the foreground.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from reelweave.loader.storage import open_storage
from reelweave.train.checkpoint.folder import latest
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.distributed.world import World

TENSOR_MIB = 64


def main() -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder on the disk to measure")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {"device": str(device), "gib": options.gib}
    for background in (True, False):
        name = "background" if background else "foreground"
        result[name] = measure(options.out / name, options.gib, device, background)
        shutil.rmtree(options.out / name)
    print(json.dumps(result, indent=1))
    return 0


def measure(folder: Path, gib: float, device: torch.device, background: bool) -> dict[str, float]:
    """Seconds of steps with and without a checkpoint; the second checkpoint counts, which finds its buffers made."""
    storage = open_storage(folder)
    names = [f"w{number}" for number in range(max(1, round(gib * 1024 / TENSOR_MIB / 3)))]
    shape = (TENSOR_MIB << 18) // 4096, 4096
    weights = {name: torch.randn(shape, device=device) for name in names}
    moments = {f"{name}.{m}": torch.zeros(shape, device=device) for name in names for m in ("m", "v")}
    config = CheckpointConfig(background=background, keep_last=1)
    groups = {"model": weights, "optimizer": moments}
    checkpoints = Checkpoints(storage, config, World(0, 1, torch.device("cpu")), groups)
    width, products = (4096, 64) if device.type == "cuda" else (2048, 4)
    a, b = (torch.randn(width, width, device=device) for _ in range(2))

    def step(number: int, saves: bool = False) -> float:
        began = time.perf_counter()
        for _ in range(products):
            torch.mm(a, b)
        for tensor in (*weights.values(), *moments.values()):
            tensor.add_(1e-3)
        checkpoints.advance(checkpoints.progress())
        if saves:
            checkpoints.save(CheckpointState(step=number, stream={}, config={}))
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    checkpoints.save(CheckpointState(step=1, stream={}, config={}), last=True)
    plain = [step(0) for _ in range(8)]
    began = time.perf_counter()
    saving = step(2, saves=True)
    meanwhile = []
    while latest(storage) != 2:
        meanwhile.append(step(0))
    return {
        "step_s": round(statistics.median(plain), 4),
        "step_that_saves_s": round(saving, 4),
        "steps_meanwhile": len(meanwhile),
        "step_meanwhile_s": round(statistics.median(meanwhile), 4) if meanwhile else 0.0,
        "on_disk_after_s": round(time.perf_counter() - began, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
