"""Choice of the rows that get a picture: kept clips, rejected ones by reason, groups of duplicates."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.takedown.takedown import STAGE as REMOVAL
from reelweave.pipelines.report.numbers.places import spread

_GROUPS = 24
_COPIES = 4


def pictured_rows(
    accounting: pa.Table, max_clips: int, max_rejected: int, further: Sequence[str] = ()
) -> NDArray[np.int64]:
    """Return rows of the accounting in the order in which they are shown first.

    Args:
        accounting: ``accounting.parquet``.
        max_clips: most kept clips, evenly spread; with 0 of them no clip is chosen for its key.
        max_rejected: most other clips of one reason, evenly spread.
        further: keys of kept clips that come, too.
    """
    ordered_rows: dict[int, None] = {}
    for rows in _choose_rows(accounting, max_clips, max_rejected):
        ordered_rows |= dict.fromkeys(rows)
    if max_clips and len(further):
        named = pc.is_in(accounting.column("key"), pa.array(further, pa.string()))
        chosen = pc.and_(named, pc.equal(accounting.column("state"), "kept"))
        ordered_rows |= dict.fromkeys(np.flatnonzero(pc.fill_null(chosen, False).to_numpy()).tolist())
    return np.fromiter(ordered_rows, np.int64, len(ordered_rows))


def _choose_rows(accounting: pa.Table, max_clips: int, max_rejected: int) -> Iterator[list[int]]:
    state, stage = accounting.column("state"), accounting.column("stage")
    kept_K = np.flatnonzero(pc.equal(state, "kept").to_numpy())
    yield kept_K[spread(len(kept_K), max_clips)].tolist()
    if max_clips and max_rejected:
        yield from _groups(accounting, kept_K)
    rest = pc.and_(
        pc.is_valid(accounting.column("start_s")), pc.is_in(state, pa.array(["filtered", "failed"]))
    )
    rest = pc.and_(rest, pc.not_equal(stage, REMOVAL))
    for reason in sorted(pc.unique(stage.filter(rest)).to_pylist()):
        rows_X = np.flatnonzero(pc.and_(rest, pc.equal(stage, reason)).to_numpy())
        yield rows_X[spread(len(rows_X), max_rejected)].tolist()


def _groups(accounting: pa.Table, kept_K: NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield the rows of the largest groups of duplicates, the kept clip first."""
    copies_X = np.flatnonzero(pc.equal(accounting.column("state"), "duplicate").to_numpy())
    of = accounting.column("duplicate_of").take(copies_X)
    kept_X = pc.index_in(of, accounting.column("key").take(kept_K).combine_chunks())
    kept_X = pc.fill_null(kept_X, -1).to_numpy()
    has_kind = kept_X >= 0
    copies_X, kept_X = copies_X[has_kind], kept_K[kept_X[has_kind]]
    original_G, count_G = np.unique(kept_X, return_counts=True)
    for group in np.argsort(-count_G, kind="stable")[:_GROUPS]:
        yield [int(original_G[group]), *copies_X[kept_X == original_G[group]][:_COPIES].tolist()]
