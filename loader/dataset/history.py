"""History of earlier revisions, so that a stream that counts steps of one can resume on another.

``history.arrow`` has a row for each sample of the current revision and of the remembered ones before it.
Their order is consistent with all of them. A row holds the shape that decides the bucket, and the revisions
that added and removed the sample. Neither the key nor the location of a removed sample is kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags, IndexArray
from reelweave.loader.dataset.manifest import Ancestor, Manifest
from reelweave.loader.dataset.plan_index import DTYPES, PlanIndex
from reelweave.loader.dataset.tables.arrow_file import read_columns
from reelweave.loader.errors import RunError

REMEMBERED = 16
"""Number of revisions before the current one to remember."""

SHAPE = ("frames", "fps", "height", "width", "text_tokens")
_ALIVE = 2**31 - 1  # removal revision of samples that exist
_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.from_numpy_dtype(DTYPES[name]), nullable=False) for name in SHAPE),
        pa.field("came", pa.int32(), nullable=False),
        pa.field("went", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True, eq=False)
class RevisionHistory:
    """Columns [N] of ``history.arrow``.

    Attributes:
        shape: columns of `PlanIndex` that decide the bucket, by name.
        came: int32, first revision with the sample.
        went: int32, first revision without the sample.
    """

    shape: dict[str, NDArray[np.generic]]
    came: NDArray[np.int32]
    went: NDArray[np.int32]

    @staticmethod
    def of(plan_index: PlanIndex, revision: int) -> "RevisionHistory":
        """Return the history of a dataset without known earlier revisions."""
        count = len(plan_index)
        return RevisionHistory(
            _shape(plan_index), np.full(count, revision, np.int32), np.full(count, _ALIVE, np.int32)
        )

    def with_revision(
        self, before: Iterable[pa.Array], after: Iterable[pa.Array], now: PlanIndex, revision: int
    ) -> "RevisionHistory":
        """Return the history with one more revision.

        A sample keeps its identity with its key and shape. A new shape may mean another bucket, so it counts as a
        removal and an addition.

        Args:
            before: keys of the last revision in parts, in the order of its index.
            after: keys of the new revision, likewise.
            now: plan index of the new revision.
            revision: number of the new revision.
        """
        alive, shape = np.flatnonzero(self.went == _ALIVE), _shape(now)
        gone = self.went == _ALIVE
        fresh, behind = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        first, last = 0, -1  # row of the new revision; latest row here that stays
        for place_n in _places(before, after):
            part = slice(first, first + len(place_n))
            first = part.stop
            old_n, same_n = np.full(len(place_n), -1, np.int64), place_n >= 0
            old_n[same_n] = alive[place_n[same_n]]
            for name, values in shape.items():
                same_n[same_n] = self.shape[name][old_n[same_n]] == values[part][same_n]
            gone[old_n[same_n]] = False
            # Added samples follow their last kept predecessor, in the order of the keys.
            anchor_n = np.maximum(np.maximum.accumulate(np.where(same_n, old_n, -1)), last)
            fresh.append(part.start + np.flatnonzero(~same_n))
            behind.append(anchor_n[~same_n] + 1)
            last = int(anchor_n[-1])
        del alive
        rows, at = np.concatenate(fresh), np.concatenate(behind)
        history = RevisionHistory(
            {name: np.insert(self.shape[name], at, values[rows]) for name, values in shape.items()},
            np.insert(self.came, at, revision),
            np.insert(np.where(gone, np.int32(revision), self.went), at, _ALIVE),
        )
        return history._since(revision - REMEMBERED)

    def _since(self, oldest: int) -> "RevisionHistory":
        retained = self.went > oldest
        if retained.all():
            return self
        return RevisionHistory(
            {name: values[retained] for name, values in self.shape.items()},
            self.came[retained],
            self.went[retained],
        )

    def plan_index(self, revision: int) -> PlanIndex:
        """Return shapes of a revision's samples, in the order of its index; locations are unknown."""
        held = self._held_flags(revision)
        count = int(held.sum())
        index_arrays = {
            name: np.broadcast_to(np.zeros(1, DTYPES[name]), count) for name in ("shard", "offset", "size")
        }
        columns: dict[str, Any] = {name: values[held] for name, values in self.shape.items()} | index_arrays
        return PlanIndex(**columns)

    def rows_after(self, revision: int, later: int) -> IndexArray:
        """Map each row of a revision to its row in a later one, int64 [N]; -1 for removed samples."""
        held = self._held_flags(later)
        return np.where(held, np.cumsum(held) - 1, -1)[self._held_flags(revision)]

    def count(self, revision: int) -> int:
        """Return the number of a revision's samples."""
        return int(self._held_flags(revision).sum())

    def _held_flags(self, revision: int) -> Flags:
        return (self.came <= revision) & (self.went > revision)

    def write(self, path: Path) -> None:
        """Write ``history.arrow``."""
        columns = [*(self.shape[name] for name in SHAPE), self.came, self.went]
        with pa.ipc.new_file(str(path), _SCHEMA) as writer:
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))

    @staticmethod
    def from_arrow(data: bytes, where: str) -> "RevisionHistory":
        """Parse the content of ``history.arrow``.

        Raises:
            RunError: the content is no history.
        """
        columns: dict[str, Any] = dict(read_columns(data, "history", where, (_SCHEMA,)))
        possible = (
            (columns["came"] >= 0) & (columns["came"] < columns["went"]) & (columns["text_tokens"] >= 0)
        )
        possible &= (columns["fps"] > 0) & (columns["fps"] < np.inf)
        for name in ("frames", "height", "width"):
            possible &= columns[name] >= 1
        if not possible.all():
            row = int(np.flatnonzero(~possible)[0])
            raise RunError(f"{where}: row {row} cannot be that of a sample; restore the file from a copy")
        return RevisionHistory({name: columns[name] for name in SHAPE}, columns["came"], columns["went"])


def _places(before: Iterable[pa.Array], after: Iterable[pa.Array]) -> Iterator[NDArray[np.int64]]:
    """Yield the place of each key of a revision among the keys before, or -1, by parts; both are sorted."""
    earlier = iter(before)
    held, first = next(earlier, None), 0
    for keys in after:
        while len(keys):
            if held is not None and not len(held):
                held = next(earlier, None)
                continue
            if held is None:
                yield np.full(len(keys), -1, np.int64)
                break
            count = int(pc.sum(pc.less_equal(keys, held[-1]), min_count=0).as_py())
            if count:
                index = np.asarray(pc.fill_null(pc.index_in(keys[:count], value_set=held), -1), np.int64)
                yield np.where(index < 0, -1, first + index)
                keys = keys[count:]
            if len(keys):
                first, held = first + len(held), next(earlier, None)


def ancestors(previous: Manifest) -> list[Ancestor]:
    """Return the revisions that the successor of ``previous`` remembers, oldest first."""
    ancestors = [
        *previous.ancestors,
        Ancestor(revision=previous.revision, index_sha256=previous.index_sha256),
    ]
    return ancestors[-REMEMBERED:]


def _shape(plan_index: PlanIndex) -> dict[str, NDArray[np.generic]]:
    return {name: np.asarray(getattr(plan_index, name)) for name in SHAPE}
