"""Entries of stages in the ledger: one by one as workers write them, and segments that the driver makes of them."""

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from reelweave.curate.ledger.files import LEDGER, TABLE, delete_many, identity_of, intact, read_many
from reelweave.curate.ledger.records import from_columns, to_columns, to_json
from reelweave.loader.dataset.tables.parquet import from_parquet, to_parquet
from reelweave.loader.storage.base import Storage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Stored = TypeVar("Stored")
Values = Mapping[str, object]
"""A JSON object."""

_MOST_LOOSE = 256  # loose entries a restart may as well read one by one


@dataclass(frozen=True)
class LedgerEntries:
    """Entries by stage, fingerprint of its configuration, and identity of the input; later ones replace earlier ones.

    Attributes:
        storage: Storage of the dataset.
    """

    storage: Storage

    def write(self, stage: str, fingerprint: str, identity: str, record: "DataclassInstance") -> None:
        """Record that a stage finished one item, and its result."""
        path = f"{_folder(stage, fingerprint)}{identity}.json"
        self.storage.write(path, json.dumps(to_json(record), ensure_ascii=False).encode())

    def read(self, stage: str, fingerprint: str, decode: Callable[[Values], Stored]) -> dict[str, Stored]:
        """Return everything a stage finished under a configuration, by identity; later entries replace earlier ones.

        Args:
            stage: Name of the stage.
            fingerprint: Digest of its configuration.
            decode: Record of a JSON object, such as `reelweave.curate.ledger.records.source_summary`.

        Raises:
            RunError: an entry is damaged.
        """
        by_identity: dict[str, Stored] = {}
        segments, loose = self._list_paths(stage, fingerprint)
        for path in segments:
            with intact(self.storage, path):
                by_identity.update(
                    (identity, decode(values)) for identity, values in self._read_segment(path)
                )
        by_identity.update(self._read_loose(loose, decode))
        return by_identity

    def latest(
        self, stage: str, fingerprint: str, decode: Callable[[Values], Stored]
    ) -> Iterator[tuple[str, Stored]]:
        """Yield `read` one by one, in no certain order; one segment is in memory, and all identities are."""
        segments, loose = self._list_paths(stage, fingerprint)
        newer = {identity_of(path) for path in loose}
        yield from self._read_loose(loose, decode)
        for path in reversed(segments):
            in_segment: set[str] = set()
            with intact(self.storage, path):
                for name, values in self._read_segment(path):
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
        """Yield `read` in parts as columns, later ones of which replace earlier ones.

        The columns are those of `reelweave.curate.ledger.records.to_columns`, after the identity as ``id``;
        no part has a column that is null in all its rows.

        Args:
            stage: Name of the stage.
            fingerprint: Digest of its configuration.
            decode: Record of a JSON object, as for `read`.
            repeated: Leaves of columns that may come as dictionaries; see `from_parquet`.
        """
        segments, loose = self._list_paths(stage, fingerprint)
        for path in segments:
            with intact(self.storage, path):
                if path.endswith(TABLE):
                    table = self._read_table(path, repeated)
                else:
                    table = _columns({name: decode(values) for name, values in self._read_segment(path)})
            yield table
        yield _columns(dict(self._read_loose(loose, decode)))

    def _read_loose(
        self, paths: Sequence[str], decode: Callable[[Values], Stored]
    ) -> Iterator[tuple[str, Stored]]:
        # Threads wait for the storage only: each that makes objects or tables keeps memory of its own.
        for path, data in zip(paths, read_many(self.storage.read, paths), strict=True):
            with intact(self.storage, path):
                stored = decode(_object(json.loads(data)))
            yield identity_of(path), stored

    def pack(self, stage: str, fingerprint: str, decode: "Callable[[Values], DataclassInstance]") -> None:
        """Move the loose entries into a segment when there are many. Only while nobody writes entries."""
        _, loose = self._list_paths(stage, fingerprint)
        if len(loose) > _MOST_LOOSE:
            self.append(stage, fingerprint, dict(self._read_loose(loose, decode)))

    def append(self, stage: str, fingerprint: str, records: "Mapping[str, DataclassInstance]") -> None:
        """Move recorded entries, given by identity, into a segment of their own, which wins over earlier ones.

        Killed in between, it leaves entries twice, with the same content.
        """
        folder = _folder(stage, fingerprint)
        segments = self.storage.list(f"{folder}packed/")
        segment_number = 1 + max((int(identity_of(item.path)) for item in segments), default=-1)
        table = _columns({identity: records[identity] for identity in sorted(records)})
        self.storage.write(f"{folder}packed/{segment_number:06d}{TABLE}", to_parquet(table))
        delete_many(self.storage, (f"{folder}{identity}.json" for identity in records))

    def forget(self, stage: str, fingerprint: str, gone: Callable[[str], bool]) -> None:
        """Remove the entries whose identity ``gone`` accepts, packed ones too."""
        segments, loose = self._list_paths(stage, fingerprint)
        for path in segments:
            if path.endswith(TABLE):
                table = self._read_table(path)
                stays = [not gone(identity) for identity in table.column("id").to_pylist()]
                if not all(stays):
                    self.storage.write(path, to_parquet(table.filter(pa.array(stays))))
                continue
            entries = list(self._read_segment(path))
            remaining = [
                {"id": identity, "row": values} for identity, values in entries if not gone(identity)
            ]
            if len(remaining) < len(entries):
                lines = "\n".join(json.dumps(line, ensure_ascii=False) for line in remaining)
                self.storage.write(path, gzip.compress(lines.encode(), mtime=0))
        for path in loose:
            if gone(identity_of(path)):
                self.storage.delete(path)

    def stages(self, start: str) -> list[str]:
        """Return the stages with entries whose name has this start."""
        paths = (item.path for item in self.storage.list(f"{LEDGER}{start}"))
        return sorted({path.removeprefix(LEDGER).split("/", 1)[0] for path in paths})

    def fingerprints(self, stage: str) -> list[str]:
        """Return the configurations under which a stage has entries."""
        start = f"{LEDGER}{stage}/"
        return sorted({item.path[len(start) :].split("/", 1)[0] for item in self.storage.list(start)})

    def _read_segment(self, path: str) -> Iterator[tuple[str, Values]]:
        """Yield identity and JSON object of each entry of a segment, a table or, of earlier versions, lines."""
        if path.endswith(TABLE):
            table = self._read_table(path)
            values = from_columns(table.drop_columns(["id"]))
            yield from zip(table.column("id").to_pylist(), values, strict=True)
            return
        data = self.storage.read(path)
        with intact(self.storage, path), gzip.GzipFile(fileobj=io.BytesIO(data)) as lines:
            for line in lines:
                entry = _object(json.loads(line))
                if set(entry) != {"id", "row"}:
                    raise ValueError("it holds something else than entries")
                yield str(entry["id"]), _object(entry["row"])

    def _read_table(self, path: str, repeated: Sequence[str] = ()) -> pa.Table:
        with intact(self.storage, path):
            table = from_parquet(self.storage.read(path), repeated=repeated)
            if "id" not in table.column_names:
                raise ValueError("it holds something else than entries")
        return table

    def _list_paths(self, stage: str, fingerprint: str) -> tuple[list[str], list[str]]:
        folder = _folder(stage, fingerprint)
        paths = [item.path for item in self.storage.list(folder)]
        segments = [path for path in paths if path.startswith(f"{folder}packed/")]
        return segments, [path for path in paths if not path.startswith(f"{folder}packed/")]


def _columns(records: "Mapping[str, DataclassInstance]") -> pa.Table:
    """Return entries as columns, the identity first."""
    return pa.table({"id": pa.array(list(records), pa.string()), **to_columns(list(records.values()))})


def _object(value: object) -> Values:
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _folder(stage: str, fingerprint: str) -> str:
    return f"{LEDGER}{stage}/{fingerprint}/"
