"""Arrays of clips as deduplication and shards take them: vectors on local disk, fingerprints read when asked for."""

import bisect
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.dedup.fingerprint import ARRAY, SPARSE_ARRAY, dense
from reelweave.curate.dedup.vector_file import VectorFile
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.tables.columns import Rows, column, places_in

_VECTOR = ".perceptual"
_MOST_BYTES = 512 << 20
"""Fingerprints in memory: those of the sources that were asked for last. All of them are 52 KB per 5 s of video."""

_BLOCK = 4096


class FingerprintPlace(NamedTuple):
    """Place of a clip's fingerprint: the name of its source's arrays in the ledger, and the clip's identity."""

    arrays: str
    clip_id: str


class Fingerprints:
    """Fingerprints of clips; those of the sources that were asked for last are kept, but not pickled.

    Args:
        ledger: Ledger that holds them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[str, dict[str, NDArray[np.uint8]]] = OrderedDict()
        self._bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict(), "_bytes": 0}

    def read(self, location: FingerprintPlace) -> NDArray[np.uint8] | None:
        """Return the fingerprint at a location, uint8 [pictures, 27, 48], or None."""
        name = location.arrays
        if name not in self._kept:
            arrays = self._ledger.blobs.read_arrays(name, lambda key: key.endswith((ARRAY, SPARSE_ARRAY)))
            self._kept[name] = {
                key.rpartition(".")[0]: array if key.endswith(ARRAY) else dense(array)
                for key, array in arrays.items()
            }
            self._bytes += _size(self._kept[name])
        self._kept.move_to_end(name)
        while self._bytes > _MOST_BYTES and len(self._kept) > 1:
            self._bytes -= _size(self._kept.popitem(last=False)[1])
        return self._kept[name].get(location.clip_id)

    def forget(self, name: str) -> None:
        """Forget a source's fingerprints, which are about to be written again."""
        self._bytes -= _size(self._kept.pop(name, {}))


class ClipArrays:
    """Perceptual embeddings and fingerprints of clips, by identity of their bytes.

    Args:
        ledger: Ledger that holds them.

    Attributes:
        vectors: The embeddings that were read, by their places, on local disk.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._names: list[str] = []  # of the arrays that were read, in order
        self._starts: list[int] = []  # first vector of each
        self._read: dict[str, int] = {}  # place in these lists
        self._ids = _Ids()  # of each call that read some
        self._firsts = [0]  # first vector of each such call, and the end
        self._fingerprints = Fingerprints(ledger)
        self.vectors = VectorFile()

    def read(self, names: Iterable[str]) -> None:
        """Read the vectors that are kept under names in the ledger, as far as they are not read yet."""
        new = [name for name in dict.fromkeys(names) if name not in self._read]
        ids, parts = [], _Parts()
        for name, arrays in zip(new, self._ledger.blobs.many_arrays(new, _is_vector), strict=True):
            self._read[name] = len(self._names)
            self._names.append(name)
            self._starts.append(self._firsts[-1] + parts.count)
            if block := parts.add({key.removesuffix(_VECTOR): vector for key, vector in arrays.items()}):
                ids.append(block[0])
                self.vectors.append(block[1])
        if block := parts.rest():
            ids.append(block[0])
            self.vectors.append(block[1])
        if ids:
            self._ids.add(pa.concat_arrays(ids))
            self._firsts.append(self._firsts[-1] + parts.count)

    def forget(self, name: str) -> None:
        """Forget what was read under a name, which is about to be written again."""
        self._fingerprints.forget(name)
        index = self._read.pop(name, None)
        if index is None:
            return
        start = self._starts[index]
        end = self._starts[index + 1] if index + 1 < len(self._starts) else self._firsts[-1]
        if start < end:
            call = bisect.bisect_right(self._firsts, start) - 1
            self._ids.forget(call, slice(start - self._firsts[call], end - self._firsts[call]))

    def find(self, clip_ids: pa.Array, names: Iterable[str] | None = None) -> Rows:
        """Return the row of each clip's perceptual embedding, -1 where there is none.

        Args:
            clip_ids: Identities of the clips' bytes.
            names: Names under which they lie; None for all that were read.
        """
        calls: Iterable[int] = range(len(self._ids))
        if names is not None:
            starts = {self._starts[self._read[name]] for name in names if name in self._read}
            calls = sorted({bisect.bisect_right(self._firsts, start) - 1 for start in starts})
        rows = np.full(len(clip_ids), -1, np.int64)
        for call in calls:
            if call < len(self._ids):
                call_rows = places_in(clip_ids, self._ids.read(call))
                rows = np.where((rows < 0) & (call_rows >= 0), call_rows + self._firsts[call], rows)
        return rows

    def read_stored(self, rows: Rows) -> NDArray[Any]:
        """Return perceptual embeddings by their places as they are stored, [places, D]; zeros for -1."""
        vectors = np.zeros((len(rows), self.vectors.width or 1), self.vectors.dtype)
        exists = rows >= 0
        if exists.any():  # before the first vector there is no width
            vectors[exists] = self.vectors.read_stored(rows[exists])
        return vectors

    def fingerprint_place(self, row: int, clip_id: str) -> FingerprintPlace:
        """Return where the fingerprint of a clip lies, whose embedding is in a row."""
        return FingerprintPlace(self._names[bisect.bisect_right(self._starts, row) - 1], clip_id)

    def fingerprint(self, row: int, clip_id: str) -> NDArray[np.uint8] | None:
        """Return the fingerprint of a clip, whose embedding is in a row, or None."""
        return self._fingerprints.read(self.fingerprint_place(row, clip_id))


class _Ids:
    """Identities of several calls in one file without a name; some were forgotten."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="reelweave-ids-")  # noqa: SIM115 - closed by the finalizer
        weakref.finalize(self, self._file.close)
        self._starts: list[int] = []  # bytes before those of each call
        self._gone: dict[int, list[slice]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, ids: pa.Array) -> None:
        """Add the identities of a call."""
        self._starts.append(self._file.seek(0, os.SEEK_END))
        table = pa.table({"id": ids})
        with pa.ipc.new_stream(self._file, table.schema) as stream:
            stream.write_table(table)

    def forget(self, call: int, rows: slice) -> None:
        """Forget the identities in some rows of a call."""
        self._gone.setdefault(call, []).append(rows)

    def read(self, call: int) -> pa.Array:
        """Return the identities of a call, null where they were forgotten."""
        self._file.seek(self._starts[call])
        ids = column(pa.ipc.open_stream(self._file).read_all(), "id")
        for rows in self._gone.get(call, ()):
            nothing = pa.nulls(rows.stop - rows.start, pa.string())
            ids = pa.concat_arrays([ids[: rows.start], nothing, ids[rows.stop :]])
        return ids


class _Parts:
    """Vectors of few clips each, which become blocks of many."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: list[str] = []
        self._vectors: list[NDArray[Any]] = []

    def add(self, vectors: dict[str, NDArray[Any]]) -> tuple[pa.Array, NDArray[Any]] | None:
        """Add vectors by identity of their clip; return a block once there are enough."""
        self.count += len(vectors)
        self._ids += vectors
        self._vectors += (vector.copy() for vector in vectors.values())  # they hold the whole file's bytes
        return self.rest() if len(self._ids) >= _BLOCK else None

    def rest(self) -> tuple[pa.Array, NDArray[Any]] | None:
        """Return identities and vectors of all that is in no block yet."""
        if not self._ids:
            return None
        block = pa.array(self._ids, pa.string()), np.stack(self._vectors)
        self._ids, self._vectors = [], []
        return block


def _is_vector(key: str) -> bool:
    return key.endswith(_VECTOR)


def _size(arrays: dict[str, NDArray[np.uint8]]) -> int:
    return sum(array.nbytes for array in arrays.values())
