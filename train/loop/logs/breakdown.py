"""Breakdown of the loss by quantile of the timestep, and by bucket."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.buckets.assignment import Bucket
from reelweave.train.distributed.world import World
from reelweave.train.loop.logs.record import LOSSES, Record
from reelweave.train.objectives.level import quantile
from reelweave.train.step.losses import Losses

BINS = 4
"""Number of equal quantiles of the training times."""


@dataclass(frozen=True)
class LossPart:
    """Mean loss of a group of samples: one bucket, or one quantile of times.

    Attributes:
        loss: mean over the samples; None if there are none or it is not finite.
        samples: number of samples.
    """

    loss: float | None
    samples: int


@dataclass(frozen=True)
class Breakdown:
    """Mean losses of samples, each counted once.

    Attributes:
        whole: all samples.
        by_quantile: groups by the middle of a quantile, from little noise (0) to much (1).
        by_bucket: groups by FRAMESxHEIGHTxWIDTH.
    """

    whole: LossPart
    by_quantile: Mapping[str, LossPart]
    by_bucket: Mapping[str, LossPart]


@dataclass(frozen=True)
class LossRecord(Record):
    """Losses by quantile and bucket of the clips trained on or held out."""

    FILE = LOSSES

    of: Literal["train", "held_out"]
    breakdown: Breakdown

    def values(self) -> dict[str, Any]:
        return {"step": self.step, "of": self.of, **asdict(self.breakdown)}

    def scalars(self) -> dict[str, float]:
        breakdown = self.breakdown
        parts = {"loss": breakdown.whole}
        parts |= {f"quantile/{name}": part for name, part in breakdown.by_quantile.items()}
        parts |= {f"bucket/{name}": part for name, part in breakdown.by_bucket.items()}
        return {
            f"losses_{self.of}/{name}": part.loss for name, part in parts.items() if part.loss is not None
        }


class LossRows:
    """Accumulator of per-sample losses on the device, without synchronization."""

    def __init__(self) -> None:
        self._known: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []

    def add(self, batch: Microbatch | Pack, losses: Losses) -> None:
        """Add a batch; fillers, whose samples count elsewhere, are skipped."""
        if batch.weight:
            shapes_B3 = torch.tensor(
                [(bucket.frames, bucket.height, bucket.width) for bucket in _buckets(batch)]
            )
            self._known.append(torch.cat([shapes_B3, quantile(losses.normals)[:, None]], dim=1))
            self._losses.append(losses.each.detach())

    def take(self, world: World) -> Breakdown:
        """Return and reset the breakdown over all ranks, the same on every rank; a collective."""
        known_n4 = torch.cat([torch.zeros(0, 4, dtype=torch.float64), *self._known]).to(world.device)
        loss_n = torch.cat([torch.zeros(0, device=world.device), *self._losses]).double()
        self._known, self._losses = [], []
        return break_down(world.gather(torch.cat([known_n4, loss_n[:, None]], dim=1)).cpu().numpy())


def break_down(rows_n5: NDArray[np.float64]) -> Breakdown:
    """Compute mean losses by group.

    Args:
        rows_n5: frames, height, width, quantile of the time, and loss of each sample.
    """
    buckets_n = [Bucket(*shape) for shape in rows_n5[:, :3].astype(int).tolist()]
    number_n = np.minimum((rows_n5[:, 3] * BINS).astype(int), BINS - 1)
    middles_n = [(bin_index + 0.5) / BINS for bin_index in number_n.tolist()]
    loss_n = rows_n5[:, 4]
    return Breakdown(_part(loss_n), _parts(middles_n, loss_n), _parts(buckets_n, loss_n))


def _buckets(batch: Microbatch | Pack) -> Sequence[Bucket]:
    """Return the bucket of each sample."""
    if isinstance(batch, Pack):
        return batch.buckets
    return [batch.bucket] * len(batch.keys)


def _parts(labels: Sequence[Any], loss_n: NDArray[np.float64]) -> dict[str, LossPart]:
    indices: dict[Any, list[int]] = {}
    for index, label in enumerate(labels):
        indices.setdefault(label, []).append(index)
    return {str(label): _part(loss_n[indices[label]]) for label in sorted(indices)}


def _part(loss_n: NDArray[np.float64]) -> LossPart:
    finite = len(loss_n) > 0 and bool(np.isfinite(loss_n).all())
    return LossPart(float(loss_n.mean()) if finite else None, len(loss_n))
