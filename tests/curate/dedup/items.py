"""Clips for deduplication, written one by one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.dedup import DedupClips, Vectors


@dataclass(frozen=True)
class DedupItem:
    """A clip with the properties of `DedupClips`; the perceptual embedding is ``global_embedding``."""

    key: str
    sha256: str
    source: str
    quality: tuple[float, ...]
    fingerprint: Callable[[], NDArray[np.uint8] | None] | None = None
    embedding: NDArray[Any] | None = None
    global_embedding: NDArray[Any] | None = None


def columns(items: Sequence[DedupItem], older: Sequence[DedupItem] = ()) -> DedupClips:
    """Return the columns of new items and of old ones."""
    every = [*items, *older]

    def fingerprint(row: int) -> NDArray[np.uint8] | None:
        read = every[row].fingerprint
        return None if read is None else read()

    return DedupClips(
        keys=pa.array([item.key for item in every], pa.string()),
        sha256=pa.array([item.sha256 for item in every], pa.string()),
        sources=pa.array([item.source for item in every], pa.string()),
        quality=np.array([item.quality for item in every], np.float64).reshape(
            len(every), len(every[0].quality) if every else 0
        ),
        old=np.arange(len(every)) >= len(items),
        footage=Vectors.of([None if one.fingerprint is None else one.global_embedding for one in every]),
        embedding=Vectors.of([one.embedding for one in every]),
        fingerprint=fingerprint,
    )
