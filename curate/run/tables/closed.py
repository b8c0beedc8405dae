"""Closed sources as columns: their clips, and what the driver asks of their pass."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.ledger import Ledger, digest
from curate.records import SourceSummary, source_summary, to_columns
from curate.run.tables.clips import by_span, from_entries, joined
from curate.run.tables.columns import Mask, Rows, column, kept, places_in
from curate.source_pass.cut_source import STAGE, source_id
from curate.sources.inputs import SourceRef

_ENTRIES = 4096
"""Entries that workers wrote one by one and that become a segment together, so that a restart reads few files."""

_OPEN, _LOOSE = -1, -2


class ClosedSources:
    """Clips of all closed sources; those closed in this run become segments of the ledger as it goes on.

    Args:
        ledger: Entries of this run and of earlier ones.
        fingerprint: Digest of the configuration of the pass.
        sources: All sources, sorted by URI; their numbers are their places here.

    Attributes:
        sources: See above.
        numbers: Number of each source, by URI.
    """

    def __init__(self, ledger: Ledger, fingerprint: str, sources: Sequence[SourceRef]) -> None:
        self._ledger, self._fingerprint, self.sources = ledger, fingerprint, sources
        self.numbers = {source.uri: number for number, source in enumerate(sources)}
        self._chunks: list[pa.Table] = []
        self._chunk = np.full(len(sources), _OPEN, np.int32)  # that holds the clips of each source
        self._cpu_s, self._pixel_s = np.zeros(len(sources)), np.zeros(len(sources))
        self._tags: dict[int, Mapping[str, str]] = {}
        self._text_ids: dict[int, str] = {}
        self._loose: dict[int, SourceSummary] = {}
        ids = pa.array([source_id(source) for source in sources], pa.string())
        for entries in ledger.tables(STAGE, fingerprint, source_summary):
            numbers = places_in(column(entries, "id"), ids)
            self._keep(kept(entries, numbers >= 0), numbers[numbers >= 0])

    def add(self, uri: str, summary: SourceSummary) -> None:
        """Add a source that is closed in the ledger; many become a segment."""
        number = self.numbers[uri]
        self._note(np.array([number]), pa.table(to_columns([summary])), _LOOSE)
        self._loose[number] = summary
        if len(self._loose) >= _ENTRIES:
            entries = {source_id(self.sources[one]): found for one, found in self._loose.items()}
            self._ledger.append(STAGE, self._fingerprint, entries)
            self._keep(*self._recent())
            self._loose = {}

    def drop(self, uris: Sequence[str]) -> None:
        """Count sources as not closed."""
        for uri in uris:
            number = self.numbers[uri]
            self._chunk[number] = _OPEN
            self._loose.pop(number, None)

    def __contains__(self, uri: str) -> bool:
        return bool(self._chunk[self.numbers[uri]] != _OPEN)

    def cpu_s(self, uri: str) -> float:
        """Return the processor seconds of the pass over a source; 0 for one that failed."""
        return float(self._cpu_s[self.numbers[uri]])

    def tags(self, number: int) -> Mapping[str, str]:
        """Return the text in the container of a source."""
        return self._tags.get(number, {})

    def text_id(self, number: int) -> str:
        """Return `text_id` of a source."""
        if number not in self._text_ids:
            source = self.sources[number]
            self._text_ids[number] = text_id(source.uri, source.caption, self.tags(number))
        return self._text_ids[number]

    @property
    def pixel_s(self) -> float:
        """Pixels times seconds of all closed sources."""
        return float(self._pixel_s[self._chunk != _OPEN].sum())

    def states(self) -> Counter[str]:
        """Return the number of clips per state, before they are judged."""
        found: Counter[str] = Counter()
        for table in self._tables():
            for one in column(table, "state").value_counts().to_pylist():
                found[one["values"]] += one["counts"]
        return found

    def clips(self, chosen: Mask | None = None) -> pa.Table:
        """Return the clips of chosen sources, or of all, by source and span."""
        tables = self._tables()
        if chosen is not None:
            tables = [kept(table, chosen[column(table, "source").to_numpy()]) for table in tables]
        return by_span(joined(tables))

    def _tables(self) -> list[pa.Table]:
        tables = [
            kept(table, self._chunk[column(table, "source").to_numpy()] == place)
            for place, table in enumerate(self._chunks)
        ]
        if len(tables) > 1:
            self._chunk[self._chunk >= 0] = 0
            tables = self._chunks = [by_span(joined(tables))]
        return [*tables, _clips(*self._recent())] if self._loose else tables

    def _recent(self) -> tuple[pa.Table, Rows]:
        """Return the entries of this run that are in no segment yet, and the numbers of their sources."""
        return pa.table(to_columns(list(self._loose.values()))), np.array(list(self._loose), np.int64)

    def _keep(self, entries: pa.Table, numbers: Rows) -> None:
        """Add entries of the sources with these numbers."""
        if len(numbers):
            self._note(numbers, entries, len(self._chunks))
            self._chunks.append(_clips(entries, numbers))

    def _note(self, numbers: Rows, entries: pa.Table, chunk: int) -> None:
        """Take what is asked of each source from its entry."""
        self._chunk[numbers] = chunk
        for name, values in (("cpu_s", self._cpu_s), ("pixel_s", self._pixel_s)):
            there = name in entries.column_names
            values[numbers] = pc.fill_null(column(entries, name), 0.0).to_numpy() if there else 0.0
        tags = (
            entries.column("tags").to_pylist(maps_as_pydicts="strict")
            if "tags" in entries.column_names
            else []
        )
        for number, found in zip(numbers.tolist(), tags or [None] * len(numbers), strict=True):
            self._tags.pop(number, None)
            self._text_ids.pop(number, None)
            if found:
                self._tags[number] = found


def _clips(entries: pa.Table, numbers: Rows) -> pa.Table:
    return from_entries(entries, pa.array(numbers, pa.int32()))


def text_id(uri: str, caption: str | None, tags: Mapping[str, str]) -> str:
    """Return a digest of all text that came with a source, which captions of its clips may be made of."""
    return digest(uri, caption or "", dict(tags))[:16]
