"""Microbatches before placement, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.base.arrays import IndexArray


@dataclass(frozen=True, eq=False)
class Microbatches:
    """Columns with one entry per microbatch.

    Attributes:
        bucket: int64 [M], place in the list of buckets.
        batch: int64 [M], B.
        length: int64 [M], S of the padded samples, text and visual tokens.
        tokens: int64 [M], tokens of all samples without padding.
        images: int64 [M], number of samples that are images.
    """

    bucket: IndexArray
    batch: IndexArray
    length: IndexArray
    tokens: IndexArray
    images: IndexArray

    def __len__(self) -> int:
        return len(self.bucket)

    def where(self, chosen: NDArray[Any] | slice) -> "Microbatches":
        """Return the selected microbatches, in the order of the selection."""
        return Microbatches(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def together(parts: Sequence[Microbatches]) -> Microbatches:
    """Concatenate microbatches."""
    return Microbatches(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(Microbatches)
        }
    )
