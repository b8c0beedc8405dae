"""Record of finished work, kept beside the dataset: entries of stages, staged clips, arrays.

An entry is keyed by stage, fingerprint of that stage's own configuration, and identity of its input. Another prompt
therefore gives new captions and keeps the clips; a threshold is no stage and repeats nothing. Workers write
entries one by one. The driver moves them into segments, tables in Parquet, as the run goes on. A restart thus
reads a few large files and no object for each entry.
"""

import gzip
import hashlib
import io
import itertools
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.ledger.npz import read_npz
from reelweave.curate.ledger.records import from_columns, to_columns, to_json
from reelweave.loader.dataset.tables.parquet import from_parquet, to_parquet
from reelweave.loader.errors import RunError, first_line
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.steady import refuse_fault

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Stored = TypeVar("Stored")
Values = Mapping[str, object]
"""A JSON object."""

LEDGER = ".ledger/"

_TABLE = ".parquet"
_SORTED = json.JSONEncoder(sort_keys=True)
_MOST_LOOSE = 256  # loose entries a restart may as well read one by one
_READERS = 16
_EACH = 4  # objects that one of them reads in turn
_AT_ONCE = 1000  # keys that S3 removes in one request
_BROKEN = (
    ValueError,
    RecursionError,
    OSError,
    EOFError,
    KeyError,
    zlib.error,
    zipfile.BadZipFile,
    pa.ArrowException,
    MemoryError,
)
"""Exceptions that damaged JSON, gzip and .npz raise."""


RUN = "run"
"""Note of the ledger: duration, costs and worker plans of the last run."""


@dataclass(frozen=True)
class Ledger:
    """The ledger of a dataset. Every write is atomic and may be repeated.

    Attributes:
        storage: Storage of the dataset.
    """

    storage: Storage

    def close(self, stage: str, fingerprint: str, identity: str, record: "DataclassInstance") -> None:
        """Record that a stage finished one item, and its result."""
        path = f"{_folder(stage, fingerprint)}{identity}.json"
        self.storage.write(path, json.dumps(to_json(record), ensure_ascii=False).encode())

    def closed(self, stage: str, fingerprint: str, decode: Callable[[Values], Stored]) -> dict[str, Stored]:
        """Return everything a stage finished under a configuration, by identity; later entries replace earlier ones.

        Args:
            stage: Name of the stage.
            fingerprint: Digest of its configuration.
            decode: Record of a JSON object, such as `reelweave.curate.ledger.records.source_summary`.

        Raises:
            RunError: an entry is damaged.
        """
        by_identity: dict[str, Stored] = {}
        segments, loose = self._listed(stage, fingerprint)
        for path in segments:
            with self._intact(path):
                by_identity.update((identity, decode(values)) for identity, values in self._entries(path))
        by_identity.update(self._loose(loose, decode))
        return by_identity

    def latest(
        self, stage: str, fingerprint: str, decode: Callable[[Values], Stored]
    ) -> Iterator[tuple[str, Stored]]:
        """Yield `closed` one by one, in no certain order; one segment is in memory, and all identities are."""
        segments, loose = self._listed(stage, fingerprint)
        newer = {_identity(path) for path in loose}
        yield from self._loose(loose, decode)
        for path in reversed(segments):
            in_segment: set[str] = set()
            with self._intact(path):
                for name, values in self._entries(path):
                    if name not in newer:
                        in_segment.add(name)
                        yield name, decode(values)
            newer |= in_segment

    def tables(
        self,
        stage: str,
        fingerprint: str,
        decode: "Callable[[Values], DataclassInstance]",
        repeated: Sequence[str] = (),
    ) -> Iterator[pa.Table]:
        """Yield `closed` in parts as columns, later ones of which replace earlier ones.

        The columns are those of `reelweave.curate.ledger.records.to_columns`, after the identity as ``id``;
        no part has a column that is null in all its rows.

        Args:
            stage: Name of the stage.
            fingerprint: Digest of its configuration.
            decode: Record of a JSON object, as for `closed`.
            repeated: Leaves of columns that may come as dictionaries; see `from_parquet`.
        """
        segments, loose = self._listed(stage, fingerprint)
        for path in segments:
            with self._intact(path):
                if path.endswith(_TABLE):
                    table = self._table(path, repeated)
                else:
                    table = _columns({name: decode(values) for name, values in self._entries(path)})
            yield table
        yield _columns(dict(self._loose(loose, decode)))

    def _loose(
        self, paths: Sequence[str], decode: Callable[[Values], Stored]
    ) -> Iterator[tuple[str, Stored]]:
        # Threads wait for the storage only: each that makes objects or tables keeps memory of its own.
        for path, data in zip(paths, self._many(self.storage.read, paths), strict=True):
            with self._intact(path):
                stored = decode(_object(json.loads(data)))
            yield _identity(path), stored

    def pack(self, stage: str, fingerprint: str, decode: "Callable[[Values], DataclassInstance]") -> None:
        """Move the loose entries into a segment when there are many. Only while nobody writes entries."""
        _, loose = self._listed(stage, fingerprint)
        if len(loose) > _MOST_LOOSE:
            self.append(stage, fingerprint, dict(self._loose(loose, decode)))

    def append(self, stage: str, fingerprint: str, records: "Mapping[str, DataclassInstance]") -> None:
        """Move recorded entries, given by identity, into a segment of their own, which wins over earlier ones.

        Killed in between, it leaves entries twice, with the same content.
        """
        folder = _folder(stage, fingerprint)
        segments = self.storage.list(f"{folder}packed/")
        segment_number = 1 + max((int(_identity(item.path)) for item in segments), default=-1)
        table = _columns({identity: records[identity] for identity in sorted(records)})
        self.storage.write(f"{folder}packed/{segment_number:06d}{_TABLE}", to_parquet(table))
        self._delete(f"{folder}{identity}.json" for identity in records)

    def forget(self, stage: str, fingerprint: str, gone: Callable[[str], bool]) -> None:
        """Remove the entries whose identity ``gone`` accepts, packed ones too."""
        segments, loose = self._listed(stage, fingerprint)
        for path in segments:
            if path.endswith(_TABLE):
                table = self._table(path)
                stays = [not gone(identity) for identity in table.column("id").to_pylist()]
                if not all(stays):
                    self.storage.write(path, to_parquet(table.filter(pa.array(stays))))
                continue
            entries = list(self._entries(path))
            remaining = [
                {"id": identity, "row": values} for identity, values in entries if not gone(identity)
            ]
            if len(remaining) < len(entries):
                lines = "\n".join(json.dumps(line, ensure_ascii=False) for line in remaining)
                self.storage.write(path, gzip.compress(lines.encode(), mtime=0))
        for path in loose:
            if gone(_identity(path)):
                self.storage.delete(path)

    def stages(self, start: str) -> list[str]:
        """Return the stages with entries whose name has this start."""
        paths = (item.path for item in self.storage.list(f"{LEDGER}{start}"))
        return sorted({path.removeprefix(LEDGER).split("/", 1)[0] for path in paths})

    def fingerprints(self, stage: str) -> list[str]:
        """Return the configurations under which a stage has entries."""
        start = f"{LEDGER}{stage}/"
        return sorted({item.path[len(start) :].split("/", 1)[0] for item in self.storage.list(start)})

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
        return (_identity(item.path) for item in self.storage.list(f"{LEDGER}clips/"))

    def drop_clips(self, clip_ids: Iterable[str]) -> None:
        """Remove staged clips; those that are gone already are no error."""
        self._delete(map(_clip_path, clip_ids))

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
        with self._intact(_arrays_path(name)):
            return read_npz(data, select)

    def array_names(self) -> list[str]:
        """Return the names under which arrays are kept."""
        return sorted(_identity(item.path) for item in self.storage.list(f"{LEDGER}arrays/"))

    def many_arrays(
        self, names: Iterable[str], select: Callable[[str], bool] = lambda _: True
    ) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield `read_arrays` of each name, in order; several are read at a time, and few wait."""
        return self._many(lambda name: self.read_arrays(name, select), names)

    def _many(self, read: Callable[[str], Stored], names: Iterable[str]) -> Iterator[Stored]:
        def several(some: Sequence[str]) -> list[Stored]:
            return [read(name) for name in some]

        rest = iter(names)
        with ThreadPoolExecutor(_READERS) as readers:
            while some := list(itertools.islice(rest, _EACH * _READERS)):
                # To wait for a thread takes longer than to read a small file of this machine.
                parts = [some[first : first + _EACH] for first in range(0, len(some), _EACH)]
                for loaded in readers.map(several, parts):
                    yield from loaded

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write a table beside entries, under a name of its own, such as "shard/rows/ID"."""
        self.storage.write(f"{LEDGER}{name}{_TABLE}", to_parquet(table))

    def read_table(self, name: str) -> pa.Table | None:
        """Return a table, or None."""
        path = f"{LEDGER}{name}{_TABLE}"
        try:
            data = self.storage.read(path)
        except FileNotFoundError:
            return None
        with self._intact(path):
            return from_parquet(data)

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

    def write_note(self, name: str, value: Any) -> None:
        """Write a JSON value for people and later runs: the configuration, the status, measured rates."""
        self.storage.write(f"{LEDGER}{name}.json", json.dumps(value, indent=1, ensure_ascii=False).encode())

    def read_note(self, name: str) -> Any:
        """Return a JSON value, or None."""
        path = f"{LEDGER}{name}.json"
        try:
            data = self.storage.read(path)
        except FileNotFoundError:
            return None
        with self._intact(path):
            return json.loads(data)

    def drop_note(self, name: str) -> None:
        """Delete the note of a name, as `write_note` wrote it."""
        self.storage.delete(f"{LEDGER}{name}.json")

    def _entries(self, path: str) -> Iterator[tuple[str, Values]]:
        """Yield identity and JSON object of each entry of a segment, a table or, of earlier versions, lines."""
        if path.endswith(_TABLE):
            table = self._table(path)
            values = from_columns(table.drop_columns(["id"]))
            yield from zip(table.column("id").to_pylist(), values, strict=True)
            return
        data = self.storage.read(path)
        with self._intact(path), gzip.GzipFile(fileobj=io.BytesIO(data)) as lines:
            for line in lines:
                entry = _object(json.loads(line))
                if set(entry) != {"id", "row"}:
                    raise ValueError("it holds something else than entries")
                yield str(entry["id"]), _object(entry["row"])

    def _table(self, path: str, repeated: Sequence[str] = ()) -> pa.Table:
        with self._intact(path):
            table = from_parquet(self.storage.read(path), repeated=repeated)
            if "id" not in table.column_names:
                raise ValueError("it holds something else than entries")
        return table

    def _delete(self, paths: Iterable[str]) -> None:
        all_paths = list(paths)
        parts = (all_paths[first : first + _AT_ONCE] for first in range(0, len(all_paths), _AT_ONCE))
        with ThreadPoolExecutor(_READERS) as writers:
            list(writers.map(self.storage.delete_many, parts))

    @contextmanager
    def _intact(self, path: str) -> Iterator[None]:
        """Raise a `RunError` in words where damaged bytes raise something else."""
        try:
            yield
        except _BROKEN as error:
            refuse_fault(error, self.storage.uri(path))
            raise RunError(
                f"{self.storage.uri(path)} is damaged ({first_line(error)}); remove it: what it held is made again"
            ) from error

    def _listed(self, stage: str, fingerprint: str) -> tuple[list[str], list[str]]:
        folder = _folder(stage, fingerprint)
        paths = [item.path for item in self.storage.list(folder)]
        segments = [path for path in paths if path.startswith(f"{folder}packed/")]
        return segments, [path for path in paths if not path.startswith(f"{folder}packed/")]


def digest(*parts: object) -> str:
    """Return an identity made of texts and JSON values."""
    return digest_of(parts)


def digest_of(parts: Iterable[object]) -> str:
    """Return `digest` of parts that are made one after the other."""
    digest, between = hashlib.sha256(), b""
    for part in parts:
        text = part if isinstance(part, str) else _SORTED.encode(part)
        digest.update(between + text.encode("utf-8", "surrogateescape"))
        between = b"\0"
    return digest.hexdigest()[:32]


def _columns(records: "Mapping[str, DataclassInstance]") -> pa.Table:
    """Return entries as columns, the identity first."""
    return pa.table({"id": pa.array(list(records), pa.string()), **to_columns(list(records.values()))})


def _object(value: object) -> Values:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _folder(stage: str, fingerprint: str) -> str:
    return f"{LEDGER}{stage}/{fingerprint}/"


def _clip_path(clip_id: str) -> str:
    return f"{LEDGER}clips/{clip_id}.mp4"


def _arrays_path(name: str) -> str:
    return f"{LEDGER}arrays/{name}.npz"


def _identity(path: str) -> str:
    return path.rsplit("/", 1)[-1].split(".", 1)[0]
