"""Times of a step over all ranks, and how long ranks waited for the slowest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from reelweave.train.distributed.world import World
from reelweave.train.measure.peak_memory import take_peak_bytes
from reelweave.train.measure.rank_waits import RankWaits, WaitSums, waits_clause
from reelweave.train.measure.timings import PARTS, StepPart


@dataclass(frozen=True)
class StepTimes:
    """Mean seconds of a step over all ranks, between two clock readings.

    All parts, including ``wait_s``, sum to ``step_s``. Parts that older runs did not record are None.

    Attributes:
        step_s: the whole step, without ``pause_s``.
        data_s: waiting for the stream.
        text_s: encoding captions.
        vae_s: encoding videos.
        forward_s: the denoiser and its losses.
        backward_s: gradients.
        wait_s: waiting for the slowest rank's gradients.
        sync_s: summing gradients over the ranks, after all have arrived.
        optimizer_s: clipping and updating weights and EMA; of the previous step, since clocks are read before.
        other_s: remaining time between these parts.
        pause_s: pause before the step: log, held-out evaluation, copying a checkpoint.
        wait_max_s: ``wait_s`` of the rank that waited longest.
        slowest_rank: rank that arrived last.
        peak_gib: peak memory of a GPU, maximum over ranks; None on a CPU.
    """

    step_s: float
    data_s: float
    text_s: float | None = None
    vae_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    wait_s: float | None = None
    sync_s: float | None = None
    optimizer_s: float | None = None
    other_s: float | None = None
    pause_s: float | None = None
    wait_max_s: float | None = None
    slowest_rank: int | None = None
    peak_gib: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Share of the step for each known part."""
        parts = ((name, getattr(self, f"{name}_s")) for name in SHOWN)
        return {name: seconds / self.step_s for name, seconds in parts if seconds is not None}

    @property
    def wait_max_share(self) -> float | None:
        """Longest wait of a rank, as a share of the step."""
        return None if self.wait_max_s is None else self.wait_max_s / self.step_s


SHOWN = ("data", "text", "vae", "forward", "backward", "wait", "sync", "optimizer", "other")
"""The parts of a step, in its order."""


@dataclass(frozen=True)
class ClockSums:
    """Clock readings of one rank, or summed over all ranks.

    Attributes:
        mean_s: Seconds of each part, divided by the number of ranks.
        sync_s: Seconds that each rank spent at the sum of gradients; 0 at the other ranks' places.
        peak_bytes: Peak memory of each rank's GPU; 0 likewise.
    """

    mean_s: Mapping[StepPart, float]
    sync_s: Sequence[float]
    peak_bytes: Sequence[float]

    def numbers(self) -> list[float]:
        """Return all fields as one row."""
        return [*(self.mean_s[part] for part in PARTS), *self.sync_s, *self.peak_bytes]

    @classmethod
    def from_numbers(cls, flat: Sequence[float]) -> Self:
        """Return the sums whose `flat` these are."""
        of_ranks = flat[len(PARTS) :]
        size = len(of_ranks) // 2
        return cls(dict(zip(PARTS, flat, strict=False)), of_ranks[:size], of_ranks[size:])


class RankTimes:
    """Step times of all ranks, exchanged within the sum that a step makes anyway.

    The last rank to reach the sum of gradients waits for nobody, so its time there is that of the sum itself. Other
    ranks wait as long as they spend there beyond it.

    Args:
        world: All ranks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._told, self._recorded = WaitSums(world.size), WaitSums(world.size)

    def own(self, spent: Mapping[StepPart, float]) -> ClockSums:
        """Return this rank's readings, to be summed over all ranks.

        Args:
            spent: Seconds of each part since the last reading (`StepClock.read`).
        """
        rank, size = self._world.rank, self._world.size
        sync_R, peak_R = [0.0] * size, [0.0] * size
        sync_R[rank], peak_R[rank] = spent["sync"], take_peak_bytes(self._world.device) or 0
        return ClockSums({part: spent[part] / size for part in PARTS}, sync_R, peak_R)

    def add(self, total: ClockSums) -> StepTimes:
        """Return the times of a step from the sum of all ranks' readings."""
        # The rank that came last waited for nobody: it tells the time of the exchange. The others' excess is waiting.
        mean, sync_R = total.mean_s, total.sync_s
        exchange = min(sync_R)
        step_s = sum(mean.values()) - mean["pause"]
        wait_R, slowest = [sync - exchange for sync in sync_R], sync_R.index(exchange)
        for sums in (self._told, self._recorded):
            sums.add(step_s, wait_R, slowest, total.peak_bytes)
        return StepTimes(
            step_s=step_s,
            data_s=mean["data"],
            text_s=mean["text"],
            vae_s=mean["vae"],
            forward_s=mean["forward"],
            backward_s=mean["backward"],
            wait_s=fmean(wait_R),
            sync_s=exchange,
            optimizer_s=mean["optimizer"],
            other_s=mean["other"],
            pause_s=mean["pause"],
            wait_max_s=max(wait_R),
            slowest_rank=slowest,
            peak_gib=max(total.peak_bytes) / 2**30 or None,
        )

    def waits_clause(self) -> str:
        """Return waits since the last call, as the end of a sentence; empty for one rank."""
        return waits_clause(self._told.take())

    def take_waits(self) -> RankWaits:
        """Return waits and memory of every rank since the last call."""
        return self._recorded.take()
