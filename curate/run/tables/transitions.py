"""Table of transitions: changes at which spans end, and the likeliest one inside each clip."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.run.tables.columns import column, equal, filter_rows, mask_of, repeat_value
from reelweave.curate.run.tables.samples import uris
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.takedown import STAGE as REMOVAL
from reelweave.loader.dataset.schema import TRANSITIONS

_BLENDED = "shots"
"""Stage that filters the blended frames of a transition."""


def transitions_table(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Table:
    """Return the transitions of clips, by source and time; those of taken-down clips are left out.

    Args:
        clips: Clips, sorted by source and part.
        sources: All sources.
    """
    # Blended frames are the row behind the one that ends with their transition.
    start_N, end_N = (pc.fill_null(column(clips, name), 0.0).to_numpy() for name in ("start_s", "end_s"))
    source_N = column(clips, "source").to_numpy()
    behind_N = np.zeros(len(clips), bool)
    behind_N[:-1] = (source_N[1:] == source_N[:-1]) & (np.abs(start_N[1:] - end_N[:-1]) < 1e-6)
    behind_N[:-1] &= equal(clips, "stage", _BLENDED)[1:]
    until_N = np.where(behind_N, np.append(end_N[1:], 0.0), end_N)
    # Both kinds of rows, without those of clips that were taken down.
    clips = clips.append_column("until_s", pa.array(until_N))
    stays = ~equal(clips, "stage", REMOVAL)
    ended = filter_rows(clips, stays & ~equal(clips, "ends_by", "") & mask_of(pc.is_valid(clips["ends_by"])))
    held = filter_rows(clips, stays & mask_of(pc.is_valid(column(clips, "inside_s"))))
    table = pa.concat_tables(
        [
            _rows(ended, ("end_s", "until_s", "ends_by", "ends_probability"), "boundary"),
            _rows(held, ("inside_s", "inside_s", "inside", "inside_probability"), "inside"),
        ]
    )
    order = pc.sort_indices(
        table, [("source", "ascending"), ("start_s", "ascending"), ("decision", "ascending")]
    )
    table = table.take(order)
    columns = [
        uris(table, sources) if name == "source" else column(table, name) for name in TRANSITIONS.names
    ]
    return pa.table(columns, schema=TRANSITIONS)


def _rows(clips: pa.Table, names: tuple[str, str, str, str], decision: str) -> pa.Table:
    """Return a row for each clip, from the columns of start, end, kind and probability."""
    found = [column(clips, name) for name in names]
    return pa.table(
        {
            "source": column(clips, "source"),
            **dict(zip(("start_s", "end_s", "kind", "probability"), found, strict=True)),
            "decision": repeat_value(decision, pa.string(), len(clips)),
            "key": column(clips, "key"),
        }
    )
