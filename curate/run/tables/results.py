"""Results of a stage over clips as columns, found by the identity of what they depend on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.caption.types import Caption
from curate.ledger import Ledger
from curate.models.clip_frames import Fault
from curate.records import ClipEmbedding, ClipResult, ClipScores, PackedArray, TextEmbedding, clip_result
from curate.run.tables.clips import SCORE, score_columns, score_names
from curate.run.tables.columns import Mask, column, kept, mask_of, places_in, taken

RESULTS = pa.schema(
    {
        "id": pa.string(),
        "fault": pa.string(),
        "caption": pa.string(),
        "caption_source": pa.string(),
        "caption_provenance": pa.map_(pa.string(), pa.string()),
        "dtype": pa.string(),
        "shape": pa.list_(pa.int32()),
        "data": pa.string(),
        "tokens": pa.int32(),
        "arrays": pa.string(),
        "arrays_sha256": pa.string(),
    }
)
"""Columns of results of any kind, null where a kind has no such field; those of scores follow."""

_ENTRIES = 4096


class StageResults:
    """All results of one stage; those of this run become segments of the ledger as it goes on.

    Args:
        ledger: Entries of this run and of earlier ones.
        stage: Name of the stage.
        fingerprint: Digest of its configuration.
    """

    def __init__(self, ledger: Ledger, stage: str, fingerprint: str) -> None:
        self._ledger, self._stage, self._fingerprint = ledger, stage, fingerprint
        self._loose: dict[str, ClipResult] = {}
        batches = ledger.batches(stage, fingerprint, clip_result)
        self._newest_first = [from_results(batch) for batch in batches][::-1]

    def add(self, identity: str, result: ClipResult) -> None:
        """Add a result that is in the ledger; many become a segment."""
        self._loose[identity] = result
        if len(self._loose) >= _ENTRIES:
            self._ledger.append(self._stage, self._fingerprint, self._loose)
            self._newest_first.insert(0, from_results(self._loose))
            self._loose = {}

    def find(self, identities: pa.Array) -> pa.Table:
        """Return the result of each identity; a row of nulls where there is none."""
        self._newest_first = [_joined(self._newest_first)]
        [packed], loose = self._newest_first, from_results(self._loose)
        rows = places_in(identities, column(packed, "id"))
        recent = places_in(identities, column(loose, "id"))
        rows = np.where(recent >= 0, len(packed) + recent, rows)
        return taken(_joined([packed, loose]) if self._loose else packed, rows)

    def forget_faults(self) -> None:
        """Count clips that failed as not done."""
        self._newest_first = [
            kept(table, mask_of(pc.is_null(column(table, "fault")))) for table in self._newest_first
        ]
        self._loose = {one: found for one, found in self._loose.items() if not isinstance(found, Fault)}


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([RESULTS.empty_table(), *tables], promote_options="default").combine_chunks()


def from_results(results: Mapping[str, ClipResult]) -> pa.Table:
    """Return the columns of results, given by identity."""
    found = list(results.values())

    def of(kind: type, name: str) -> list[object]:
        return [getattr(one, name) if isinstance(one, kind) else None for one in found]

    packed = [one.embedding if isinstance(one, ClipEmbedding) else None for one in found]
    provenance = [sorted(one.provenance.items()) if isinstance(one, Caption) else None for one in found]
    columns = {
        "id": list(results),
        "fault": of(Fault, "reason"),
        "caption": of(Caption, "text"),
        "caption_source": of(Caption, "source"),
        "caption_provenance": provenance,
        "dtype": [one and one.dtype for one in packed],
        "shape": [one and list(one.shape) for one in packed],
        "data": [one and one.data for one in packed],
        "tokens": of(TextEmbedding, "tokens"),
        "arrays": of(TextEmbedding, "arrays"),
        "arrays_sha256": of(TextEmbedding, "sha256"),
    }
    scores = [one.scores or {} if isinstance(one, ClipScores | ClipEmbedding) else {} for one in found]
    table = pa.table(columns, RESULTS)
    for name, values in score_columns(scores).items():
        table = table.append_column(name, values)
    return table


def to_results(table: pa.Table) -> list[ClipResult | None]:
    """Return the results of rows; None for a row of nulls."""
    names = score_names(table)
    found: list[ClipResult | None] = []
    for row in table.to_pylist(maps_as_pydicts="strict"):
        scores = {name: value for name in names if (value := row[f"{SCORE}{name}"]) is not None}
        if row["id"] is None:
            found.append(None)
        elif row["fault"] is not None:
            found.append(Fault(row["fault"]))
        elif row["caption"] is not None:
            found.append(Caption(row["caption"], row["caption_source"], row["caption_provenance"]))
        elif row["data"] is not None:
            packed = PackedArray(row["dtype"], tuple(row["shape"]), row["data"])
            found.append(ClipEmbedding(packed, scores or None))
        elif row["arrays"] is not None:
            found.append(TextEmbedding(row["tokens"], row["arrays"], row["arrays_sha256"]))
        else:
            found.append(ClipScores(scores))
    return found


def there(found: pa.Table) -> Mask:
    """Return which rows have a result."""
    return mask_of(pc.is_valid(column(found, "id")))


def packed_arrays(found: pa.Table) -> tuple[NDArray[Any], Mask]:
    """Return the embedding of each row, [rows, D], and which rows have one; the others are zero."""
    has = mask_of(pc.is_valid(column(found, "data")))
    rows = found.filter(pa.array(has)).select(["dtype", "shape", "data"]).to_pylist()
    arrays = [PackedArray(row["dtype"], tuple(row["shape"]), row["data"]).array for row in rows]
    if not arrays:
        return np.zeros((len(found), 1), np.float16), has
    matrix = np.zeros((len(found), *arrays[0].shape), arrays[0].dtype)
    matrix[has] = np.stack(arrays)
    return matrix, has
