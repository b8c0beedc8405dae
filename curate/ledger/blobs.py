"""Blobs of the ledger: staged clips, arrays beside entries, and tables."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.ledger.files import LEDGER, TABLE, delete_many, identity_of, intact, read_many
from reelweave.curate.ledger.npz import read_npz
from reelweave.loader.base.operations import charged
from reelweave.loader.dataset.tables.parquet import from_parquet, to_parquet
from reelweave.loader.storage.base import Storage


@dataclass(frozen=True)
class LedgerBlobs:
    """Staged clips by the identity of their bytes; arrays and tables by name.

    Attributes:
        storage: Storage of the dataset.
    """

    storage: Storage

    @charged("write")
    def write_clip(self, clip_id: str, data: bytes) -> None:
        self.storage.write(_clip_path(clip_id), data)

    def read_clip(self, clip_id: str) -> bytes:
        """Return the bytes of a staged clip.

        Raises:
            FileNotFoundError: it is not staged (any more).
        """
        return self.storage.read(_clip_path(clip_id))

    def staged_clips(self) -> Iterator[str]:
        """Yield the identities of all staged clips."""
        return (identity_of(item.path) for item in self.storage.list(f"{LEDGER}clips/"))

    def drop_clips(self, clip_ids: Iterable[str]) -> None:
        """Remove staged clips; those that are gone already are no error."""
        delete_many(self.storage, map(_clip_path, clip_ids))

    @charged("write")
    def write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays beside an entry, under a name of their own."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        self.storage.write(_arrays_path(name), buffer.getvalue())

    def read_arrays(
        self, name: str, select: Callable[[str], bool] = lambda _: True
    ) -> dict[str, NDArray[Any]]:
        """Return the arrays whose key is wanted, by key; empty when there are none. They cannot be written to."""
        try:
            data = self.storage.read(_arrays_path(name))
        except FileNotFoundError:
            return {}
        with intact(self.storage, _arrays_path(name)):
            return read_npz(data, select)

    def array_names(self) -> list[str]:
        """Return the names under which arrays are kept."""
        return sorted(identity_of(item.path) for item in self.storage.list(f"{LEDGER}arrays/"))

    def many_arrays(
        self, names: Iterable[str], select: Callable[[str], bool] = lambda _: True
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield `read_arrays` of each name, in order; several are read at a time, and few wait."""
        return read_many(lambda name: self.read_arrays(name, select), names)

    def drop_arrays(self, name: str) -> None:
        """Remove all arrays kept under a name."""
        self.storage.delete(_arrays_path(name))

    def forget_arrays(self, gone: Callable[[str], bool], names: Iterable[str]) -> None:
        """Remove the arrays whose key ``gone`` accepts, of those kept under ``names``."""
        for name in names:
            arrays = self.read_arrays(name)
            remaining = {key: array for key, array in arrays.items() if not gone(key)}
            if len(remaining) < len(arrays):
                self.write_arrays(name, remaining)

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a table beside entries, under a name of its own, such as "shard/rows/ID"."""
        self.storage.write(f"{LEDGER}{name}{TABLE}", to_parquet(table))

    def read_table(self, name: str) -> pa.Table | None:
        """Return a table, or None."""
        path = f"{LEDGER}{name}{TABLE}"
        try:
            data = self.storage.read(path)
        except FileNotFoundError:
            return None
        with intact(self.storage, path):
            return from_parquet(data)


def _clip_path(clip_id: str) -> str:
    return f"{LEDGER}clips/{clip_id}.mp4"


def _arrays_path(name: str) -> str:
    return f"{LEDGER}arrays/{name}.npz"
