"""The accounting in numbers: rows, sources and seconds per state and stage."""

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa

from loader.dataset.schema import STATES, Row


@dataclass(frozen=True)
class StageTotal:
    """What one stage did to how much.

    Attributes:
        state: kept, filtered, duplicate or failed.
        stage: that decided so.
        rows: spans, and sources without any.
        sources: different ones among the rows.
        seconds: of the rows' spans.
    """

    state: str
    stage: str
    rows: int
    sources: int
    seconds: float


def stage_totals(accounting: pa.Table) -> list[StageTotal]:
    """Totals of an ``accounting.parquet``, kept first, then by stage."""
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
