"""Fixed menu of GPU groups: every communicator that plans may use, made once when a run begins.

A group of k GPUs is a block of neighbours. Powers of two are aligned, as buddies of a memory allocator, so
that they nest in each other and in nodes. Source: Knuth, "Dynamic storage allocation", 1968.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from reelweave.train.cascade.schedule import Schedule
from reelweave.train.distributed.communicator_memory import all_to_all_bytes


@dataclass(frozen=True)
class GroupMenu:
    """Blocks of neighbouring GPUs, one tuple of first GPUs for each degree.

    Attributes:
        gpus: number of GPUs.
        degrees: numbers of GPUs that a group may have, rising.
    """

    gpus: int
    degrees: tuple[int, ...]

    @classmethod
    def of(cls, gpus: int, degrees: Iterable[int]) -> "GroupMenu":
        """Return the menu of all degrees up to the number of GPUs."""
        return cls(gpus, tuple(sorted({int(degree) for degree in degrees if degree <= gpus})))

    @cached_property
    def firsts(self) -> dict[int, tuple[int, ...]]:
        """First GPU of each block, rising, by degree."""
        return {degree: block_starts(self.gpus, degree) for degree in self.degrees}

    def groups(self) -> list[tuple[int, ...]]:
        """Return all groups of two or more GPUs, narrow ones first."""
        return [
            tuple(range(first, first + degree))
            for degree in self.degrees
            if degree > 1
            for first in self.firsts[degree]
        ]

    def holds(self, gpus: Sequence[int]) -> bool:
        """Return whether GPUs, rising, are a group of the menu."""
        degree = len(gpus)
        return gpus[-1] - gpus[0] == degree - 1 and gpus[0] in self.firsts.get(degree, ())

    def within(self, first: int, stop: int, degree: int) -> int | None:
        """Return the first GPU of the first block of a degree in a range; None if there is none."""
        starts = (start for start in self.firsts.get(degree, ()) if first <= start and start + degree <= stop)
        return next(starts, None)

    def strangers(self, schedule: Schedule) -> list[tuple[int, ...]]:
        """Return the groups of a schedule that are not of the menu."""
        return [run.gpus for run in schedule.runs if not self.holds(run.gpus)]


def communicator_bytes(degrees: Iterable[int]) -> int:
    """Return the memory of a menu's communicators on each GPU, at most: it is in one group of each degree."""
    return sum(all_to_all_bytes(degree) for degree in set(degrees))


def block_starts(gpus: int, degree: int) -> tuple[int, ...]:
    """Return the first GPUs of all blocks of a degree, rising.

    Blocks begin at the degree's multiples, as the groups of a static layout do. A degree that is no power of two
    also has the two ends of each aligned power of two that encloses it. For example, 6 of 8 GPUs are 0 to 5 or 2 to 7.
    """
    starts = set(range(0, gpus - degree + 1, degree))
    around = 1 << (degree - 1).bit_length()
    for begin in range(0, gpus, around):
        stop = min(begin + around, gpus)
        if stop - begin >= degree:
            starts |= {begin, stop - degree}
    return tuple(sorted(starts))
