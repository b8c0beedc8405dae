"""Outcomes of a curation: totals per state and stage, lost rows, sources and duplicates."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.dataset import ACCOUNTING, Dataset, StageTotal, stage_totals
from reelweave.loader.dataset.schema import STATES
from reelweave.loader.dataset.tables.accounting import Numbered, grow_array, seconds_of
from reelweave.loader.errors import RunError

_FIRST = {"failed": 0, "duplicate": 1, "filtered": 2}
_BLENDED = "shots"  # stage of the blended frames of transitions, of which there are many
_OF_LOST = ["state", "stage", "source", "start_s", "end_s", "key", "reason"]
_OF_COPIES = ["source", "start_s", "end_s", "key", "stage", "reason", "duplicate_of"]


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


@dataclass(frozen=True)
class LostSpan:
    """Span that was not kept, and why; fields as of the accounting."""

    state: str
    stage: str
    source: str
    start_s: float | None
    end_s: float | None
    key: str
    reason: str


@dataclass(frozen=True)
class LostSpans:
    """Number of the spans that were not kept, and the first of them."""

    count: int
    rows: list[LostSpan]


@dataclass(frozen=True)
class DuplicateSpan:
    """Span that was dropped in favour of a sample; fields as of the accounting."""

    source: str
    start_s: float
    end_s: float
    key: str
    stage: str
    reason: str


@dataclass(frozen=True)
class DuplicateGroup:
    """Sample, and the spans that were dropped in favour of it."""

    key: str
    source: str
    start_s: float
    end_s: float
    copies: list[DuplicateSpan]


@dataclass(frozen=True)
class DuplicateGroups:
    """Duplicates of a dataset.

    Attributes:
        count: number of samples that have copies.
        copies: number of all spans that were dropped.
        groups: the largest groups.
    """

    count: int
    copies: int
    groups: list[DuplicateGroup]


@dataclass(frozen=True)
class Outcomes:
    """Numbers of an accounting.

    Attributes:
        stages: totals of each state and stage.
        lost: spans that were not kept, failures first.
        sources: totals of each source, by name.
        copies: rows of duplicates, columns `_OF_COPIES`.
    """

    stages: list[StageTotal]
    lost: LostSpans
    sources: list[SourceTotal]
    copies: pa.Table

    @staticmethod
    def of(dataset: Dataset, most_lost: int) -> "Outcomes":
        """Return the numbers of a dataset, whose accounting is read by parts.

        Args:
            dataset: the dataset.
            most_lost: most rows of what was not kept.

        Raises:
            RunError: the accounting is damaged, or contradicts itself or the manifest.
        """
        lost, sources = _Lost(most_lost), _Sources()
        copies = [pa.schema([ACCOUNTING.field(name) for name in _OF_COPIES]).empty_table()]

        def parts() -> Iterator[pa.Table]:
            for table in dataset.table_parts("accounting"):
                lost.add(table)
                sources.add(table)
                copies.append(table.filter(pc.field("state") == "duplicate").select(_OF_COPIES))
                yield table

        stages = stage_totals(parts())
        if (count := len(sources.numbered.names)) != dataset.manifest.totals.sources:
            where = dataset.storage.uri(dataset.manifest.table("accounting").path)
            raise RunError(
                f"{where}: it has {count} sources, manifest.json counts {dataset.manifest.totals.sources};"
                " run `reelweave verify` for all that is wrong"
            )
        return Outcomes(stages, lost.spans(), sources.totals(), pa.concat_tables(copies))


class _Lost:
    """First rows of what was not kept, of an accounting that comes by parts.

    Failures come first, then duplicates, then filtered clips, and blended frames of transitions last.
    """

    def __init__(self, max_rows: int) -> None:
        self._most, self._count = max_rows, 0
        self._rows = pa.schema([ACCOUNTING.field(name) for name in _OF_LOST]).empty_table()

    def add(self, accounting: pa.Table) -> None:
        lost = accounting.filter(pc.field("state") != "kept").select(_OF_LOST)
        self._count += len(lost)
        rows = pa.concat_tables([self._rows, lost])
        rank = pc.fill_null(pc.index_in(rows.column("state"), pa.array(list(_FIRST))), len(_FIRST))
        order = rank.to_numpy().astype(np.int64)
        order += len(_FIRST) * (rows.column("stage").to_numpy() == _BLENDED)
        self._rows = rows.take(np.argsort(order, kind="stable")[: self._most])

    def spans(self) -> LostSpans:
        return LostSpans(self._count, [LostSpan(**row) for row in self._rows.to_pylist()])


class _Sources:
    """Totals of each source, of an accounting that comes by parts.

    Attributes:
        numbered: numbers of the sources.
    """

    def __init__(self) -> None:
        self.numbered = Numbered()
        self._rows = {state: np.zeros(0, np.int64) for state in STATES}
        self._total, self._kept = np.zeros(0), np.zeros(0)
        self._reasons: dict[int, str] = {}

    def add(self, accounting: pa.Table) -> None:
        number_n, seconds_n = self.numbered.of(accounting.column("source")), seconds_of(accounting)
        count = len(self.numbered.names)
        for state, rows in self._rows.items():
            state_rows = np.flatnonzero(pc.equal(accounting.column("state"), state))
            self._rows[state] = grow_array(rows, count)
            np.add.at(self._rows[state], number_n[state_rows], 1)
            if state == "kept":
                self._kept = grow_array(self._kept, count)
                np.add.at(self._kept, number_n[state_rows], seconds_n[state_rows])
            elif state == "failed":
                reasons = accounting.column("reason").take(pa.array(state_rows)).to_pylist()
                for source_number, reason in zip(number_n[state_rows].tolist(), reasons, strict=True):
                    self._reasons.setdefault(source_number, reason)
        self._total = grow_array(self._total, count)
        np.add.at(self._total, number_n, seconds_n)

    def totals(self) -> list[SourceTotal]:
        return [
            SourceTotal(
                source=name,
                **{state: int(rows[index]) for state, rows in self._rows.items()},
                seconds=float(self._total[index]),
                kept_seconds=float(self._kept[index]),
                kept_share=float(self._kept[index] / self._total[index]) if self._total[index] else None,
                reason=self._reasons.get(index, ""),
            )
            for name, index in sorted(self.numbered.names.items())
        ]


def duplicate_groups(dataset: Dataset, copies: pa.Table, max_groups: int) -> DuplicateGroups:
    """Return the kept samples that have copies, the largest groups with the copies dropped for each.

    Args:
        dataset: the dataset.
        copies: its rows of duplicates, as of `Outcomes`.
        max_groups: most groups.
    """
    # Copies by the key of the clip that was kept instead.
    named = copies.column("duplicate_of").combine_chunks().dictionary_encode()
    groups: dict[str, list[int]] = {}
    for row, code in enumerate(named.indices.to_pylist()):
        if code is not None:
            groups.setdefault(named.dictionary[code].as_py(), []).append(row)
    # That clip may have gone later: then it is no group of the dataset.
    is_sample = pc.is_in(
        pa.array(list(groups), pa.string()), dataset.column("key").combine_chunks()
    ).to_pylist()
    groups_kept = {
        key: copy_rows for (key, copy_rows), is_kept in zip(groups.items(), is_sample, strict=True) if is_kept
    }
    # Only the groups that are shown are read from the index.
    largest = sorted(groups_kept.items(), key=lambda item: (-len(item[1]), item[0]))[:max_groups]
    row_numbers = [row_number for key, _ in largest if (row_number := dataset.row_number(key)) is not None]
    spans = dataset.rows_at(np.array(row_numbers, np.int64), ["source", "start_s", "end_s"]).to_pylist()
    rows = dict(zip((key for key, _ in largest), spans, strict=True))
    spans_of = copies.drop_columns("duplicate_of")
    return DuplicateGroups(
        len(groups_kept),
        len(copies),
        [
            DuplicateGroup(
                key,
                **rows[key],
                copies=[DuplicateSpan(**row) for row in spans_of.take(copy_rows).to_pylist()],
            )
            for key, copy_rows in largest
        ],
    )
