"""Microbatches before they have a rank: what a plan knows of each, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.base.arrays import Places


@dataclass(frozen=True, eq=False)
class Microbatches:
    """Equal columns, one entry per microbatch.

    Attributes:
        bucket: int64 [M], a place in the list of buckets.
        batch: int64 [M], B.
        length: int64 [M], S that every sample is padded to, text and visual tokens.
        tokens: int64 [M], of all samples without padding.
        images: int64 [M], samples that are images.
    """

    bucket: Places
    batch: Places
    length: Places
    tokens: Places
    images: Places

    def __len__(self) -> int:
        return len(self.bucket)

    def where(self, chosen: NDArray[Any] | slice) -> "Microbatches":
        """Some of them, in the order asked for."""
        return Microbatches(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def together(parts: Sequence[Microbatches]) -> Microbatches:
    """The microbatches of all parts, one part after the other."""
    return Microbatches(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(Microbatches)
        }
    )
