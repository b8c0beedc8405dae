"""Comparison of a dataset's tables with each other, part by part."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset.manifest import Manifest
from reelweave.loader.dataset.tables.row_parts import RowParts, hash_parts, part_count
from reelweave.loader.dataset.tars.members import media_members

MAX_PROBLEMS = 1000

_INDEX, _KEPT, _COPY, _SCORED, _CAPTIONED = range(5)
_KEYS = pa.schema(
    [("kind", pa.int8()), ("key", pa.string()), ("source", pa.string()), ("start_s", pa.float64())]
)
_SPANS = pa.schema([("source", pa.string()), ("start_s", pa.float64()), ("end_s", pa.float64())])


class CrossChecks:
    """Tables that are added part by part, and compared at the end; a context that removes its files.

    Keys and sources are divided among parts on disk, so that equal ones meet in memory.

    Args:
        manifest: manifest of the dataset.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        rows = manifest.totals.samples + sum(manifest.totals.accounting.values())
        self._keys = RowParts(_KEYS, part_count(rows))
        self._spans = RowParts(_SPANS, part_count(rows))
        self._samples: Counter[str] = Counter()
        self._splits: dict[str, set[str]] = {}
        self._dotted: list[str] = []
        self._unreasoned: list[str] = []
        self._captions: dict[str, str] = {}  # a problem of each kind
        self._last_caption: tuple[str, str, int] | None = None
        self._seconds, self._clip_bytes = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.__exit__(kind, error, trace)
        self._spans.__exit__(kind, error, trace)

    def add(self, name: str, table: pa.Table) -> None:
        """Add sound rows of the table "index", "accounting", "scores" or "captions"."""
        {
            "index": self._add_index,
            "accounting": self._add_accounting,
            "scores": self._add_scores,
            "captions": self._add_captions,
        }[name](table)

    @property
    def sources(self) -> int:
        """Number of different sources in the accounting, once all of it was added."""
        tables = map(self._spans.read, range(self._spans.parts))
        return sum(pc.count_distinct(table.column("source")).as_py() for table in tables)

    def problems(self, sound: set[str]) -> Iterator[str]:
        """Yield contradictions among the tables that are sound, in words."""
        if "index" not in sound:
            return
        yield from self._of_totals()
        yield from self._of_shards()
        if "accounting" in sound:
            yield from self._of_keys()
            yield from self._unreasoned
            for part in range(self._spans.parts):
                yield from _span_problems(self._spans.read(part))
        yield from self._captions.values()
        for key in self._keys_without(_CAPTIONED, _INDEX):
            yield f"captions.parquet has captions of {key}, but index.parquet does not have it"
        if "scores" in sound:
            for key in self._keys_without(_SCORED, _INDEX):
                yield f"scores.parquet calls {key} kept, but index.parquet does not have it"

    def _add_index(self, table: pa.Table) -> None:
        self._add_keys(_INDEX, table)
        self._seconds += math.fsum(table.column("duration_s").to_pylist())
        self._clip_bytes += int(media_members(table).size.sum())
        groups = table.group_by(["shard", "split"], use_threads=False).aggregate([([], "count_all")])
        for row in groups.to_pylist():
            self._samples[row["shard"]] += row["count_all"]
            self._splits.setdefault(row["shard"], set()).add(row["split"])
        keys = table.column("key")
        dotted = keys.filter(pc.match_substring_regex(keys, r"\.[^/]*$"))
        self._dotted += dotted.slice(0, MAX_PROBLEMS - len(self._dotted)).to_pylist()

    def _add_accounting(self, table: pa.Table) -> None:
        self._spans.add(table, hash_parts(table.column("source"), self._spans.parts))
        state = table.column("state")
        self._add_keys(_KEPT, table.filter(pc.equal(state, "kept")))
        copies = table.filter(pc.equal(state, "duplicate"))
        self._add_keys(_COPY, copies, "duplicate_of")
        silent = table.filter(pc.and_(pc.not_equal(state, "kept"), pc.equal(table.column("reason"), "")))
        for row in silent.slice(0, MAX_PROBLEMS - len(self._unreasoned)).to_pylist():
            self._unreasoned.append(f"{_where(row)} is {row['state']} without a reason")

    def _add_scores(self, table: pa.Table) -> None:
        self._add_keys(_SCORED, table.filter(pc.equal(table.column("state"), "kept")))

    def _add_captions(self, table: pa.Table) -> None:
        self._add_keys(_CAPTIONED, table)
        lacks = pc.equal(pc.is_null(table.column("caption")), pc.equal(table.column("reason"), ""))
        for row in table.filter(lacks).slice(0, 1).to_pylist():
            words = (
                "neither a caption nor a reason"
                if row["caption"] is None
                else "a caption, and a reason for none"
            )
            self._captions.setdefault("reason", f"captions.parquet: {row['key']} has {words} ({row['name']})")
        columns = (table.column(name).to_pylist() for name in ("key", "name", "number"))
        for entry in zip(*columns, strict=True):
            if self._last_caption is not None and entry <= self._last_caption:
                what = "occurs twice" if entry == self._last_caption else "comes after the next one"
                self._captions.setdefault(
                    "order", f"captions.parquet: {entry[0]} {entry[1]} {entry[2]} {what}"
                )
            self._last_caption = entry

    def _add_keys(self, kind: int, table: pa.Table, column: str = "key") -> None:
        count = len(table)
        beside = [
            table.column(name) if kind == _COPY else pa.nulls(count, _KEYS.field(name).type)
            for name in ("source", "start_s")
        ]
        columns = [pa.array(np.full(count, kind, np.int8)), table.column(column), *beside]
        rows = pa.Table.from_arrays(columns, schema=_KEYS)
        self._keys.add(rows, hash_parts(rows.column("key"), self._keys.parts))

    def _of_totals(self) -> Iterator[str]:
        totals = self._manifest.totals
        if not math.isclose(self._seconds, totals.duration_s, rel_tol=1e-6, abs_tol=1e-6):
            yield f"manifest.json counts {totals.duration_s} s, index.parquet {self._seconds}"
        if self._clip_bytes != totals.clip_bytes:
            yield f"manifest.json counts {totals.clip_bytes} bytes of clips, index.parquet {self._clip_bytes}"

    def _of_shards(self) -> Iterator[str]:
        for key in self._dotted:
            yield f"key {key} holds a dot: other WebDataset readers would cut it"
        listed = {shard.path: shard.samples for shard in self._manifest.shards}
        for path in sorted(listed.keys() | self._samples.keys()):
            if listed.get(path, 0) != self._samples[path]:
                listed_count = listed.get(path, 0)
                yield f"{path}: the manifest lists {listed_count} samples, index.parquet {self._samples[path]}"
        for path, names in self._splits.items():
            if len(names) > 1:
                yield f"{path} holds samples of {' and '.join(sorted(names))}; a shard is of one split"

    def _of_keys(self) -> Iterator[str]:
        for key in self._keys_without(_INDEX, _KEPT):
            yield f"accounting.parquet has no kept row for sample {key}"
        for key in self._keys_without(_KEPT, _INDEX):
            yield f"accounting.parquet calls {key} kept, but index.parquet does not have it"
        for part in range(self._keys.parts):
            kept_keys = self._kind(part, _KEPT).column("key")
            if pc.count_distinct(kept_keys).as_py() < len(kept_keys):
                yield "accounting.parquet has two kept rows for one key"
                break
        for part in range(self._keys.parts):
            copies, samples = self._kind(part, _COPY), self._kind(part, _INDEX)
            strange = copies.filter(_missing(copies.column("key"), samples.column("key")))
            for row in strange.slice(0, MAX_PROBLEMS).to_pylist():
                of = f"a duplicate of {row['key']}"
                yield f"{_where(row)} is {of}, which index.parquet does not have"

    def _keys_without(self, of: int, other: int) -> list[str]:
        """Return keys of one kind that are of no other, sorted."""
        keys: list[str] = []
        for part in range(self._keys.parts):
            own_keys, other_keys = (self._kind(part, kind).column("key") for kind in (of, other))
            keys += (
                pc.unique(own_keys.filter(_missing(own_keys, other_keys))).slice(0, MAX_PROBLEMS).to_pylist()
            )
        return sorted(keys)[:MAX_PROBLEMS]

    def _kind(self, part: int, kind: int) -> pa.Table:
        rows = self._keys.read(part)
        return rows.filter(pc.equal(rows.column("kind"), kind))


def _missing(keys: pa.ChunkedArray, among: pa.ChunkedArray) -> Any:
    return pc.invert(pc.is_in(keys, value_set=among.combine_chunks()))


def _where(row: dict[str, Any]) -> str:
    return f"accounting.parquet: {row['source']} from {row['start_s']} s"


def _span_problems(spans: pa.Table) -> Iterator[str]:
    """Check that spans of a source are adjacent, so that no second is counted twice or missing."""
    sources = spans.column("source").combine_chunks().dictionary_encode()
    code_N: NDArray[np.int32] = sources.indices.to_numpy()
    start_N, end_N = spans.column("start_s").to_numpy(), spans.column("end_s").to_numpy()
    first_U = np.unique(code_N, return_index=True)[1]
    alone_U = ~np.isnan(start_N[first_U]) | (np.bincount(code_N) == 1) if len(spans) else np.zeros(0, bool)
    for code in np.flatnonzero(~alone_U)[:MAX_PROBLEMS]:
        yield f"accounting.parquet: {sources.dictionary[code]} has a row without a span beside others"
    rows = np.flatnonzero(~np.isnan(start_N))
    rows = rows[np.lexsort((end_N[rows], start_N[rows], code_N[rows]))]
    before, after = rows[:-1], rows[1:]
    gap = (code_N[before] == code_N[after]) & (np.abs(end_N[before] - start_N[after]) > 1e-6)
    for row, following in _pairs(before[gap], after[gap]):
        source = sources.dictionary[code_N[row]]
        yield (
            f"accounting.parquet: {source} has a span ending at {end_N[row]} s and the next starting at"
            f" {start_N[following]} s"
        )


def _pairs(before: NDArray[np.int64], after: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    return zip(before[:MAX_PROBLEMS].tolist(), after[:MAX_PROBLEMS].tolist(), strict=True)
