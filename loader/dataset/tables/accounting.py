"""Totals of the accounting: rows, sources and seconds by state and stage."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset.schema import STATES

TOTALLED = ("source", "start_s", "end_s", "state", "stage")
"""Columns of which totals are made."""


@dataclass(frozen=True)
class StageTotal:
    """Totals of one state and stage.

    Attributes:
        state: kept, filtered, duplicate or failed.
        stage: stage that decided the state.
        rows: number of spans, and of sources without spans.
        sources: number of distinct sources among the rows.
        seconds: duration of the rows' spans.
    """

    state: str
    stage: str
    rows: int
    sources: int
    seconds: float


def stage_totals(accounting: pa.Table) -> list[StageTotal]:
    """Return the totals of an ``accounting.parquet``, of which it takes the columns `TOTALLED`.

    Those of kept spans come first, then by stage.
    """
    rows = accounting.select(["state", "stage", "source"]).append_column(
        "seconds", pc.fill_null(pc.subtract(accounting.column("end_s"), accounting.column("start_s")), 0.0)
    )
    # One thread: sums of floats keep their order, and short processes end without waiting for others.
    found = rows.group_by(["state", "stage"], use_threads=False).aggregate(
        [("source", "count"), ("source", "count_distinct"), ("seconds", "sum")]
    )
    totals = [
        StageTotal(
            row["state"], row["stage"], row["source_count"], row["source_count_distinct"], row["seconds_sum"]
        )
        for row in found.to_pylist()
    ]
    return sorted(totals, key=lambda total: (STATES.index(total.state), total.stage))
