"""Timings of a rank: parts of its steps, and each of its microbatches."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch

from reelweave.loader.base.arrays import Floats
from reelweave.loader.batch import Batch, Microbatch
from reelweave.loader.buckets.cost_fit import Timings
from reelweave.train.distributed.world import World

StepPart = Literal["data", "text", "vae", "forward", "backward", "sync", "optimizer", "other", "pause"]
"""Activity of a rank; docs/train.md defines them."""
PARTS: tuple[StepPart, ...] = get_args(StepPart)

Timed = Callable[[StepPart], AbstractContextManager[None]]
"""Context manager that times its block as a part (`StepClock.part`)."""

_MOST = 10_000  # maximum number of microbatches between two reads; later ones are dropped


def no_timing(part: StepPart) -> AbstractContextManager[None]:  # noqa: ARG001 - as `Timed` has it
    """Return a context manager that times nothing."""
    return nullcontext()


class Moment(Protocol):
    """A point in a device's command stream (`torch.cuda.Event`)."""

    def synchronize(self) -> None:
        """Block until the device has reached the point."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return milliseconds up to a later, synchronized moment."""


def moment(device: torch.device) -> Moment:
    """Record the end of the device's queued work; on a CPU, now."""
    if device.type != "cuda":
        return _HostMoment()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    event.record()
    return event


class _HostMoment:
    """Moment of a CPU, whose work is synchronous."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: "_HostMoment") -> float:
        return (end_event._at_s - self._at_s) * 1000


class StepClock:
    """Clock of a rank's activities; at any moment exactly one part of a step is active.

    On a GPU the marks are events in the compute stream. A part lasts from when the device reaches it until
    the device finishes it. Host work that overlaps with the device costs nothing, and device stalls count.
    Parts have the same names in a profiler's trace.

    Args:
        world: all ranks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._at: StepPart = "pause"
        self._marks: list[tuple[StepPart, Moment]] = []
        self._batches: list[tuple[int, int, int, int]] = []
        self._timings: list[tuple[int, int, float, int]] = []
        self._turn(self._at)

    def begin(self) -> None:
        """Start the clock of a step."""
        self._turn("other")

    def pause(self) -> None:
        """End a step; time until the next one belongs to none."""
        self._turn("pause")

    @contextmanager
    def part(self, name: StepPart) -> Iterator[None]:
        """Time a block as a part; nested parts are subtracted."""
        before = self._at
        with torch.profiler.record_function(name):
            self._turn(name)
            yield
            self._turn(before)

    @contextmanager
    def microbatch(self, batch: Batch) -> Iterator[None]:
        """Time forward and backward of one microbatch; packs, which have no single S, are not recorded."""
        first = len(self._marks)
        with self.part("forward"):
            yield
        if isinstance(batch, Microbatch):
            self._batches.append((len(batch.keys), batch.length, first, len(self._marks) - 1))

    def read(self) -> dict[StepPart, float]:
        """Return and reset the seconds of each part; synchronizes with the device."""
        self._turn(self._at)
        seconds = self._seconds()
        spent = dict.fromkeys(PARTS, 0.0)
        for (name, _), elapsed_s in zip(self._marks, np.diff(seconds).tolist(), strict=False):
            spent[name] += elapsed_s
        for size, length, first, last in self._batches[: _MOST - len(self._timings)]:
            elapsed_s = float(seconds[last] - seconds[first])
            self._timings.append((size, length, elapsed_s, self._world.rank))
        self._marks, self._batches = self._marks[-1:], []
        return spent

    def take(self) -> Timings:
        """Return and reset the microbatch timings of all ranks, up to the last read; a collective."""
        device = self._world.device
        own_n4 = torch.tensor(self._timings, dtype=torch.float64, device=device).reshape(-1, 4)
        self._timings = []
        batch, length, step_s, rank = self._world.gather(own_n4).cpu().numpy().T
        return Timings(batch.astype(np.int64), length.astype(np.int64), step_s, rank.astype(np.int64))

    def _turn(self, part: StepPart) -> None:
        self._at = part
        self._marks.append((part, moment(self._world.device)))

    def _seconds(self) -> Floats:
        """Return times of the marks relative to the first; synchronizes with the last."""
        first, last = self._marks[0][1], self._marks[-1][1]
        last.synchronize()
        return np.array([first.elapsed_time(event) for _, event in self._marks]) / 1000
