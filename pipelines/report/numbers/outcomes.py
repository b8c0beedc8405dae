"""Outcomes of a curation: totals per state and stage, lost rows, sources and duplicates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loader.dataset import Dataset
from loader.dataset.schema import STATES

_FIRST = {"failed": 0, "duplicate": 1, "filtered": 2}
_BLENDED = "shots"  # stage of the blended frames of transitions, of which there are many


@dataclass(frozen=True)
class SourceTotal:
    """Outcome of one source, in spans.

    Attributes:
        source: URI or path.
        kept: spans that are samples.
        filtered: spans that a threshold or a rule rejects.
        duplicate: spans that repeat others.
        failed: spans that could not be used; 1 for a source that gave none.
        seconds: duration of all spans.
        kept_seconds: duration of those kept.
        kept_share: share of the seconds kept, 0 to 1; None without a span.
        reason: reason of its failure, "" without one.
    """

    source: str
    kept: int
    filtered: int
    duplicate: int
    failed: int
    seconds: float
    kept_seconds: float
    kept_share: float | None
    reason: str


def lost_rows(accounting: pa.Table, most: int) -> dict[str, Any]:
    """Return what was not kept: its number of rows, and the first of them with their reasons.

    Failures come first, then duplicates, then filtered clips, and blended frames of transitions last.
    """
    lost = accounting.filter(pc.field("state") != "kept")
    states = pa.array(list(_FIRST))
    order = pc.fill_null(pc.index_in(lost.column("state"), states), len(_FIRST)).to_numpy().astype(np.int64)
    order += len(_FIRST) * (lost.column("stage").to_numpy() == _BLENDED)
    first = np.argsort(order, kind="stable")[:most]
    columns = ["state", "stage", "source", "start_s", "end_s", "key", "reason"]
    return {"count": len(lost), "rows": lost.select(columns).take(first).to_pylist()}


def source_totals(accounting: pa.Table) -> list[SourceTotal]:
    """Return the totals of every source, by name."""
    if not len(accounting):
        return []
    seconds = pc.fill_null(pc.subtract(accounting.column("end_s"), accounting.column("start_s")), 0.0)
    source = accounting.column("source").combine_chunks().dictionary_encode()
    row_N = source.indices.to_numpy()
    state_N = pc.fill_null(pc.index_in(accounting.column("state"), pa.array(STATES)), len(STATES)).to_numpy()
    count = len(source.dictionary)
    rows = {
        state: np.bincount(row_N[state_N == number], minlength=count) for number, state in enumerate(STATES)
    }
    total = np.bincount(row_N, weights=seconds.to_numpy(), minlength=count)
    kept = state_N == STATES.index("kept")
    kept_total = np.bincount(row_N[kept], weights=seconds.to_numpy()[kept], minlength=count)
    failed = accounting.filter(pc.field("state") == "failed").select(["source", "reason"]).to_pydict()
    # Reversed, so that a source's first failure is the one that stays.
    reasons = dict(zip(reversed(failed["source"]), reversed(failed["reason"]), strict=True))
    names = source.dictionary.to_pylist()
    return [
        SourceTotal(
            source=names[place],
            **{state: int(rows[state][place]) for state in STATES},
            seconds=float(total[place]),
            kept_seconds=float(kept_total[place]),
            kept_share=float(kept_total[place] / total[place]) if total[place] else None,
            reason=reasons.get(names[place], ""),
        )
        for place in sorted(range(count), key=names.__getitem__)
    ]


def duplicate_groups(dataset: Dataset, most: int) -> dict[str, Any]:
    """Return the number of kept samples that have copies, and the largest groups with the copies dropped for each."""
    accounting = dataset.accounting
    columns = ["source", "start_s", "end_s", "key", "stage", "reason", "duplicate_of"]
    copies = accounting.filter(pc.field("state") == "duplicate").select(columns)
    named = copies.column("duplicate_of").combine_chunks().dictionary_encode()
    groups: dict[str, list[int]] = {}
    for place, code in enumerate(named.indices.to_pylist()):
        if code is not None:
            groups.setdefault(named.dictionary[code].as_py(), []).append(place)
    there = pc.is_in(pa.array(list(groups), pa.string()), dataset.column("key").combine_chunks()).to_pylist()
    known = {key: places for (key, places), found in zip(groups.items(), there, strict=True) if found}
    largest = sorted(known.items(), key=lambda item: (-len(item[1]), item[0]))[:most]
    numbers = [number for key, _ in largest if (number := dataset.row_number(key)) is not None]
    spans = dataset.rows_at(np.array(numbers, np.int64), ["source", "start_s", "end_s"]).to_pylist()
    rows = dict(zip((key for key, _ in largest), spans, strict=True))
    return {
        "count": len(known),
        "copies": len(copies),
        "groups": [
            {
                "key": key,
                **rows[key],
                "copies": copies.drop_columns("duplicate_of").take(places).to_pylist(),
            }
            for key, places in largest
        ],
    }
