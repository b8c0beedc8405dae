"""Further captions of a dataset's samples, by name, memory-mapped by all processes of a machine."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.shared.node_files import Arrays, NodeFiles
from reelweave.loader.dataset.tables.table_reader import TableReader

TABLE = "captions"
_READ = pa.schema(
    {"key": pa.string(), "name": pa.string(), "number": pa.int32(), "caption": pa.large_string()}
)


@dataclass(frozen=True, eq=False)
class FurtherCaptions:
    """Captions of some names, of all samples of one dataset.

    Attributes:
        names: Their names.
        first_N: int64 [N + 1]: first entry of each index row, and the end.
        name_E: int16 [E]: place in ``names`` of each entry; entries of a row are sorted by it and by their number.
        begin_E: int64 [E + 1]: first byte of each entry's text, and the end.
        texts: uint8: texts in UTF-8, one after the other.
    """

    names: tuple[str, ...]
    first_N: NDArray[np.int64]
    name_E: NDArray[np.int16]
    begin_E: NDArray[np.int64]
    texts: NDArray[np.uint8]

    def of(self, row_number: int, name: str) -> list[str]:
        """Return the captions of a sample under a name, in their order; none where it has none."""
        first, end = self.first_N[row_number : row_number + 2].tolist()
        wanted = self.names.index(name)
        return [
            bytes(self.texts[self.begin_E[entry] : self.begin_E[entry + 1]]).decode(errors="replace")
            for entry in range(first, end)
            if self.name_E[entry] == wanted
        ]

    def rows_with(self, name: str) -> NDArray[np.int64]:
        """Return the index rows with captions under a name, rising."""
        entries = np.flatnonzero(self.name_E == self.names.index(name))
        return np.unique(np.searchsorted(self.first_N, entries, side="right") - 1)


def caption_names(dataset: TableReader) -> dict[str, int]:
    """Return the names of a dataset's further captions, with the number of captions under each."""
    counts: Counter[str] = Counter()
    for table in dataset.further_parts(TABLE) or ():
        there = table.filter(pc.is_valid(table.column("caption")))
        counts.update(
            {item["values"]: item["counts"] for item in pc.value_counts(there.column("name")).to_pylist()}
        )
    return dict(sorted(counts.items()))


def further_captions(dataset: TableReader, names: Collection[str], node: NodeFiles) -> FurtherCaptions | None:
    """Return the captions of a dataset under some names; None without the table of captions.

    One process of a machine reads the table; the others map what it made.

    Args:
        dataset: tables of the dataset.
        names: names of the captions.
        node: files shared by the machine's processes.

    Raises:
        RunError: the table is damaged.
    """
    entry = dataset.manifest.tables.get(TABLE)
    if entry is None:
        return None
    ordered = tuple(sorted(names))
    content = hashlib.sha256(
        repr((dataset.manifest.index_sha256, entry.sha256, ordered)).encode()
    ).hexdigest()[:32]
    arrays = node.arrays(f"{content}.captions", lambda: _arrays(dataset, ordered))
    return FurtherCaptions(ordered, *(arrays[name] for name in ("first", "name", "begin", "texts")))


def _arrays(dataset: TableReader, names: Sequence[str]) -> Arrays:
    """Read the captions of some names, in the order of the index."""
    named, parts = pa.array(names, pa.string()), [_READ.empty_table()]
    for table in dataset.further_parts(TABLE) or ():
        some = pc.and_(pc.is_valid(table.column("caption")), pc.is_in(table.column("name"), named))
        parts.append(table.select(_READ.names).filter(some).cast(_READ))
    table = pa.concat_tables(parts)
    # Both tables are sorted by key; captions of other keys are those of no sample.
    row_E = _rows_of(table.column("key"), dataset.column("key"))
    table, row_E = table.filter(pa.array(row_E >= 0)), row_E[row_E >= 0]
    name_E = pc.index_in(table.column("name"), named).to_numpy().astype(np.int16)
    order = np.lexsort((table.column("number").to_numpy(), name_E, row_E))
    captions = table.column("caption").take(pa.array(order)).cast(pa.large_binary())
    rows = np.arange(dataset.manifest.totals.samples + 1)
    return {
        "first": np.searchsorted(row_E[order], rows).astype(np.int64),
        "name": name_E[order],
        "begin": np.concatenate([[0], np.cumsum(pc.binary_length(captions).to_numpy(), dtype=np.int64)]),
        "texts": np.frombuffer(b"".join(text.as_buffer() for text in captions), np.uint8),
    }


def _rows_of(keys: pa.ChunkedArray, index_keys: pa.ChunkedArray) -> NDArray[Any]:
    """Return the index row of each key, -1 where there is none."""
    return np.asarray(pc.fill_null(pc.index_in(keys, value_set=index_keys), -1).to_numpy(), np.int64)
