"""Kept clips of all partitions, by the few columns in which clips of different partitions are compared."""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.ledger.records import unhex
from reelweave.curate.run.tables.clips import SCORE
from reelweave.curate.run.tables.columns import Mask, Rows, column, equal, mask_of
from reelweave.curate.run.tables.compare import qualities
from reelweave.loader.errors import RunError

_HALF = 16  # of the bytes of a digest

MOST_KEPT = (2**31 - 1) // 20
"""Kept clips of one run: a column of their keys holds 2 GiB."""

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
        quality: See `reelweave.curate.run.tables.compare.qualities`; integers, without the aesthetic score,
            where none has one.
        old: Whether it lies in the dataset already.
        footage: Place of its perceptual embedding, or -1.
    """

    firsts: Rows
    rows: NDArray[np.int32]
    sources: NDArray[np.int32]
    keys: pa.Array
    digests: pa.Array
    quality: NDArray[Any]
    old: Mask
    footage: NDArray[np.int32]

    @staticmethod
    def of(clips: pa.Table, old: Mask, footage: Rows) -> "KeptClips":
        """Return the kept clips of one partition.

        Args:
            clips: Clips of the partition.
            old: See above; of the kept ones.
            footage: See above; of the kept ones.
        """
        mask = is_kept(clips)
        columns = clips.select([*_COLUMNS, *(name for name in _SCORES if name in clips.column_names)])
        columns = columns.filter(pa.array(mask))
        return KeptClips(
            firsts=np.array([0, len(columns)]),
            rows=np.flatnonzero(mask).astype(np.int32),
            sources=column(columns, "source").to_numpy(),
            keys=column(columns, "key"),
            digests=half_digests(column(columns, "sha256")),
            quality=_narrow(qualities(columns)),
            old=old,
            footage=footage.astype(np.int32),
        )

    @staticmethod
    def concat(parts: "list[KeptClips]") -> "KeptClips":
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
        widest = max(part.quality.shape[1] for part in parts)
        parts[:] = [replace(part, quality=_widen_quality(part.quality, widest)) for part in parts]
        columns = [[getattr(part, field.name) for part in parts] for field in fields(KeptClips)[1:]]
        parts.clear()  # so that only one column is there twice at a time
        merged: list[Any] = []
        for values in columns:
            merged.append(
                pa.concat_arrays(values) if isinstance(values[0], pa.Array) else np.concatenate(values)
            )
            values.clear()
        return KeptClips(firsts, *merged)

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

    def partitions_of(self, rows: Rows) -> Rows:
        """Return the partition of each clip."""
        return np.searchsorted(self.firsts, rows, side="right") - 1

    def of_partition(self, partition: int) -> slice:
        """Return the places of a partition's clips."""
        return slice(int(self.firsts[partition]), int(self.firsts[partition + 1]))


def is_kept(clips: pa.Table) -> Mask:
    """Return which clips are kept."""
    return equal(clips, "state", "kept") & mask_of(pc.is_valid(column(clips, "key")))


def half_digests(sha256: pa.Array) -> pa.Array:
    """Return the bytes of half of each digest, which is enough to tell clips apart."""
    texts = pc.utf8_slice_codeunits(sha256, 0, 2 * _HALF)
    odd = pc.not_equal(pc.binary_length(texts), 2 * _HALF)  # of a dataset that others made
    digests = [hashlib.sha256(text.as_py().encode()).hexdigest()[: 2 * _HALF] for text in texts.filter(odd)]
    packed = unhex(pc.replace_with_mask(texts, odd, pa.array(digests, pa.string())), 2 * _HALF)
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(_HALF), len(packed), [None, pa.py_buffer(np.ascontiguousarray(packed))]
    )


_AESTHETIC, _LENGTH = 1, 2  # columns of qualities


def _narrow(quality: NDArray[np.float64]) -> NDArray[Any]:
    """Return qualities in the same order and less memory, unless there are aesthetic scores."""
    if quality[:, _AESTHETIC].any():
        return quality
    quality[:, _LENGTH] *= 10  # it has one decimal
    return np.minimum(np.rint(np.delete(quality, _AESTHETIC, axis=1)), 2**31 - 1).astype(np.int32)


def _widen_quality(quality: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return qualities that others have with aesthetic scores."""
    if quality.shape[1] == columns:
        return quality
    wide = np.insert(quality.astype(np.float64), _AESTHETIC, 0.0, axis=1)
    wide[:, _LENGTH] /= 10
    return wide
