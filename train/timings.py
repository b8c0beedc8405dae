"""What microbatches really took on this rank: what the cost they were planned with is compared to."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from loader.batch import Batch, Microbatch
from loader.cost_fit import Timings
from train.parallel.world import World

_MOST = 10_000  # microbatches between two set points; what comes after them is not kept


class MicrobatchClock:
    """Times microbatches without waiting for the device.

    Args:
        device: where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._shapes: list[tuple[int, int]] = []
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event] | float] = []

    @contextmanager
    def measure(self, batch: Batch) -> Iterator[None]:
        """Around forward and backward of one microbatch; a pack, which has no single S, is not kept."""
        if self._cuda:
            begin, end = _event(), _event()
            begin.record()
            yield
            end.record()
            self._keep(batch, (begin, end))
        else:
            began = time.perf_counter()
            yield
            self._keep(batch, time.perf_counter() - began)

    def take(self, world: World) -> Timings:
        """What all ranks measured since the last call, the same on every rank; a collective."""
        own = [(*shape, self._seconds(mark)) for shape, mark in zip(self._shapes, self._marks, strict=True)]
        self._shapes, self._marks = [], []
        rows_n3 = torch.tensor(own, dtype=torch.float64, device=world.device).reshape(-1, 3)
        batch, length, step_s = world.gather(rows_n3).cpu().numpy().T
        return Timings(batch.astype(np.int64), length.astype(np.int64), step_s)

    def _keep(self, batch: Batch, mark: tuple[torch.cuda.Event, torch.cuda.Event] | float) -> None:
        if isinstance(batch, Microbatch) and len(self._marks) < _MOST:
            self._shapes.append((len(batch.keys), batch.length))
            self._marks.append(mark)

    def _seconds(self, mark: tuple[torch.cuda.Event, torch.cuda.Event] | float) -> float:
        if isinstance(mark, float):
            return mark
        begin, end = mark
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
