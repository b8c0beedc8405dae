"""What a training step shall reach on an H200, and whether it did: a pure function of what was measured."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

DATASHEET_TFLOPS = {"NVIDIA H200": 989.0, "NVIDIA H100 80GB HBM3": 989.0, "NVIDIA B200": 2250.0}
"""Dense bfloat16, by the name that the driver tells."""
PEER, PEER_FULL = "diffusers", "diffusers, full"
"""The peer keeps all activations, or those between its blocks alone: whole, its step takes more than an H200 has."""


class Row(NamedTuple):
    """Steps of one kind.

    Attributes:
        case: what was run.
        step_s: the median.
        spread: of the longest and shortest step, over the median.
        tokens: of a step, text and video.
        tflop: of a step, forward and backward (`reelweave.train.measure.flops`).
        peak_gib: most of the GPU's memory; None on a CPU.
        predicted_gib: the same, as `reelweave.train.memory.dry_run` has it; None where nobody predicts it
            (compiled; a peer).
        error: why there is no figure.
    """

    case: str
    step_s: float | None = None
    spread: float | None = None
    tokens: int | None = None
    tflop: float | None = None
    peak_gib: float | None = None
    predicted_gib: float | None = None
    error: str | None = None

    def mfu(self, peak_tflops: float | None) -> float | None:
        """The share of a peak."""
        if self.tflop is None or self.step_s is None or not peak_tflops:
            return None
        return self.tflop / self.step_s / peak_tflops

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured, less 1."""
        if self.peak_gib is None or self.predicted_gib is None:
            return None
        return self.predicted_gib / self.peak_gib - 1


class Goal(NamedTuple):
    """An aim.

    Attributes:
        aim: in words.
        wanted: the figure that is enough.
        reached: None where it was not measured.
        where: by which case.
        met: None where it was not measured.
    """

    aim: str
    wanted: float
    reached: float | None
    where: str | None
    met: bool | None


def goals(rows: Sequence[Row], peak_tflops: float | None) -> list[Goal]:
    """The aims, with the best row for speed, also of the peer, and the worst for memory.

    Args:
        rows: all of a run.
        peak_tflops: of a dense bfloat16 product in the same run.
    """
    ours = [row for row in rows if row.case not in (PEER, PEER_FULL)]
    # FP8 products are no part of a bfloat16 peak.
    exact = [row for row in ours if "fp8" not in row.case]
    used = [(share, row.case) for row in exact if (share := row.mfu(peak_tflops)) is not None]
    errors = [(abs(error), row.case) for row in ours if (error := row.memory_error) is not None]
    peer = min((row.step_s for row in rows if row not in ours and row.step_s), default=None)
    times = [(peer / row.step_s, row.case) for row in exact if peer and row.step_s]
    return [
        _at_least("MFU of the measured bfloat16 peak", 0.5, used),
        _at_least("times as fast as diffusers' Wan in a plain loop", 1.0, times),
        _at_most("memory: error of the prediction", 0.03, errors),
    ]


def _at_least(aim: str, wanted: float, found: Iterable[tuple[float, str]]) -> Goal:
    reached, where = max(found, default=(None, None))
    return Goal(aim, wanted, reached, where, None if reached is None else reached >= wanted)


def _at_most(aim: str, wanted: float, found: Iterable[tuple[float, str]]) -> Goal:
    reached, where = max(found, default=(None, None))
    return Goal(aim, wanted, reached, where, None if reached is None else reached <= wanted)
