"""Totals of the accounting: rows, sources and seconds by state and stage."""

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa

from loader.dataset.schema import STATES, Row


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
    """Return the totals of an ``accounting.parquet``, kept first, then by stage."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in accounting.select(["state", "stage", "source", "start_s", "end_s"]).to_pylist():
        groups[row["state"], row["stage"]].append(row)
    return [
        StageTotal(
            state,
            stage,
            len(rows),
            len({row["source"] for row in rows}),
            sum(row["end_s"] - row["start_s"] for row in rows if row["start_s"] is not None),
        )
        for (state, stage), rows in sorted(
            groups.items(), key=lambda item: (STATES.index(item[0][0]), item[0][1])
        )
    ]
