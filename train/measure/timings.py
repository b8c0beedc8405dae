"""Where a rank's time goes: the parts of its steps, and what each of its microbatches took."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch

from loader.base.arrays import Floats
from loader.batch import Batch, Microbatch
from loader.buckets.cost_fit import Timings
from train.distributed.world import World

Part = Literal["data", "text", "vae", "forward", "backward", "sync", "optimizer", "other", "pause"]
"""What a rank is at: docs/train.md tells what belongs to which."""
PARTS: tuple[Part, ...] = get_args(Part)

Timed = Callable[[Part], AbstractContextManager[None]]
"""Makes what happens inside of it a part (`StepClock.part`)."""

_MOST = 10_000  # microbatches between two set points; what comes after them is not kept


def untimed(part: Part) -> AbstractContextManager[None]:  # noqa: ARG001 - as `Timed` has it
    """For what nobody times."""
    return nullcontext()


class Moment(Protocol):
    """A point in a device's work (`torch.cuda.Event`)."""

    def synchronize(self) -> None:
        """Returns when the device has come there."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds up to a later one, which has been waited for."""


def moment(device: torch.device) -> Moment:
    """The point up to which the device's work is now queued; on a CPU, now."""
    if device.type != "cuda":
        return _HostMoment()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    event.record()
    return event


class _HostMoment:
    """For work that is done when it is asked for."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: "_HostMoment") -> float:
        return (end_event._at_s - self._at_s) * 1000


class StepClock:
    """Notes when this rank turns from one part of a step to another; at any moment it is at exactly one.

    On a GPU the notes are events in the stream of its work. A part then lasts from when the device has come to it until
    it has done with it: what the host prepares while the device computes takes no time, and what the device waits for
    does. Parts have the same names in a profiler's trace.

    Args:
        world: all ranks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._at: Part = "pause"
        self._marks: list[tuple[Part, Moment]] = []
        self._batches: list[tuple[int, int, int, int]] = []
        self._timings: list[tuple[int, int, float, int]] = []
        self._turn(self._at)

    def begin(self) -> None:
        """A step begins."""
        self._turn("other")

    def pause(self) -> None:
        """It ends; what comes now, up to the next step, belongs to none."""
        self._turn("pause")

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Around a part; one inside of another is taken out of it."""
        before = self._at
        with torch.profiler.record_function(name):
            self._turn(name)
            yield
            self._turn(before)

    @contextmanager
    def microbatch(self, batch: Batch) -> Iterator[None]:
        """Around forward and backward of one, which are its parts; a pack, which has no single S, is not kept."""
        first = len(self._marks)
        with self.part("forward"):
            yield
        if isinstance(batch, Microbatch):
            self._batches.append((len(batch.keys), batch.length, first, len(self._marks) - 1))

    def read(self) -> dict[Part, float]:
        """Seconds of each part since the last call; waits until the device has come here."""
        self._turn(self._at)
        seconds = self._seconds()
        spent = dict.fromkeys(PARTS, 0.0)
        for (name, _), taken in zip(self._marks, np.diff(seconds).tolist(), strict=False):
            spent[name] += taken
        for size, length, first, last in self._batches[: _MOST - len(self._timings)]:
            taken = float(seconds[last] - seconds[first])
            self._timings.append((size, length, taken, self._world.rank))
        self._marks, self._batches = self._marks[-1:], []
        return spent

    def take(self) -> Timings:
        """What all ranks' microbatches took since the last call, as far as it was read; a collective."""
        device = self._world.device
        own_n4 = torch.tensor(self._timings, dtype=torch.float64, device=device).reshape(-1, 4)
        self._timings = []
        batch, length, step_s, rank = self._world.gather(own_n4).cpu().numpy().T
        return Timings(batch.astype(np.int64), length.astype(np.int64), step_s, rank.astype(np.int64))

    def _turn(self, part: Part) -> None:
        self._at = part
        self._marks.append((part, moment(self._world.device)))

    def _seconds(self) -> Floats:
        """When the marks were made, from the first one on; the last one is waited for."""
        first, last = self._marks[0][1], self._marks[-1][1]
        last.synchronize()
        return np.array([first.elapsed_time(event) for _, event in self._marks]) / 1000
