"""Peak FLOP/s of devices, the reference for MFU."""

import time
from typing import Literal

import torch

from reelweave.train.distributed.world import World

Peak = float | Literal["measure"] | None
"""Peak TFLOP/s of one device: given, to be measured, or unknown."""

_SIZE = {"cuda": 8192, "cpu": 256}
_REPEATS, _ROUNDS = 10, 5


def peak_flops_per_s(peak: Peak, world: World) -> float | None:
    """Return the peak of all ranks together, the same on every rank; None if unknown. A collective."""
    if peak is None:
        return None
    local_flops_per_s = measured_flops_per_s(world.device) if peak == "measure" else peak * 1e12
    return world.sums([local_flops_per_s])[0]


def measured_flops_per_s(device: torch.device) -> float:
    """Measure a large dense bfloat16 product of normal numbers, best of several rounds."""
    size = _SIZE[device.type]
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    out, best_s = torch.empty_like(a), float("inf")
    for _ in range(1 + _ROUNDS):  # the first round also selects the kernel
        _wait(device)
        began = time.perf_counter()
        for _ in range(_REPEATS):
            torch.matmul(a, b, out=out)
        _wait(device)
        best_s = min(best_s, time.perf_counter() - began)
    return _REPEATS * 2 * size**3 / best_s


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
