"""Kept clips of all partitions, by the few columns in which clips of different partitions are compared."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.run.tables.clips import SCORE
from curate.run.tables.columns import Mask, Rows, column, equal, mask_of
from curate.run.tables.compare import qualities
from loader.errors import RunError

_HALF = 32  # of the digits of a digest

MOST_KEPT = (2**31 - 1) // _HALF
"""Kept clips of one run: a column of their halved digests holds 2 GiB."""

_COLUMNS = ("source", "key", "sha256", "width", "height", "clip_bytes", "duration_s")
_SCORES = (f"{SCORE}aesthetic",)


@dataclass(frozen=True)
class KeptClips:
    """Kept clips, in the order of partitions and rows.

    Attributes:
        firsts: First clip of each partition, and the number of clips.
        rows: Row of each clip in its partition.
        sources: Number of its source.
        keys: Its key.
        digests: Half of the SHA-256 of its bytes.
        quality: See `curate.run.tables.compare.qualities`.
        old: Whether it lies in the dataset already.
        footage: Place of its perceptual embedding, or -1.
    """

    firsts: Rows
    rows: NDArray[np.int32]
    sources: NDArray[np.int32]
    keys: pa.Array
    digests: pa.Array
    quality: NDArray[np.float64]
    old: Mask
    footage: Rows

    @staticmethod
    def of(clips: pa.Table, old: Mask, footage: Rows) -> "KeptClips":
        """Return the kept clips of one partition.

        Args:
            clips: Clips of the partition.
            old: See above; of the kept ones.
            footage: See above; of the kept ones.
        """
        here = is_kept(clips)
        kept = clips.select([*_COLUMNS, *(name for name in _SCORES if name in clips.column_names)])
        kept = kept.filter(pa.array(here))
        return KeptClips(
            firsts=np.array([0, len(kept)]),
            rows=np.flatnonzero(here).astype(np.int32),
            sources=column(kept, "source").to_numpy(),
            keys=column(kept, "key"),
            digests=half_digests(column(kept, "sha256")),
            quality=qualities(kept),
            old=old,
            footage=footage,
        )

    @staticmethod
    def joined(parts: "list[KeptClips]") -> "KeptClips":
        """Return the clips of consecutive partitions, and empty their list.

        Raises:
            RunError: there are more than `MOST_KEPT`.
        """
        if sum(map(len, parts)) > MOST_KEPT:
            raise RunError(
                f"one run keeps {MOST_KEPT:,} clips; curate parts of the input into datasets of their own, and blend"
                " these"
            )
        firsts = np.concatenate([[0], np.cumsum([part.firsts[-1] for part in parts])])
        columns = [[getattr(part, one.name) for part in parts] for one in fields(KeptClips)[1:]]
        parts.clear()  # so that only one column is there twice at a time
        joined: list[Any] = []
        for values in columns:
            joined.append(
                pa.concat_arrays(values) if isinstance(values[0], pa.Array) else np.concatenate(values)
            )
            values.clear()
        return KeptClips(firsts, *joined)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, mask: Mask) -> "KeptClips":
        """Return the clips where a mask is true."""
        if mask.all():
            return self
        where = pa.array(mask)
        return KeptClips(
            firsts=np.concatenate([[0], np.cumsum(mask)])[self.firsts],
            rows=self.rows[mask],
            sources=self.sources[mask],
            keys=self.keys.filter(where),
            digests=self.digests.filter(where),
            quality=self.quality[mask],
            old=self.old[mask],
            footage=self.footage[mask],
        )

    def of_partition(self, partition: int) -> slice:
        """Return the places of a partition's clips."""
        return slice(int(self.firsts[partition]), int(self.firsts[partition + 1]))


def is_kept(clips: pa.Table) -> Mask:
    """Return which clips are kept."""
    return equal(clips, "state", "kept") & mask_of(pc.is_valid(column(clips, "key")))


def half_digests(sha256: pa.Array) -> pa.Array:
    """Return half of each digest, which is enough to tell clips apart."""
    return pc.utf8_slice_codeunits(sha256, 0, _HALF)
