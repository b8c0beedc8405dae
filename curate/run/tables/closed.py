"""Closed sources as columns: their clips, and what the driver asks of their pass."""

import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.dedup.text_hashes import TextPlaces
from reelweave.curate.filters.measure import ADDED, lacking, never_measured
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import SourceSummary, source_summary, to_columns
from reelweave.curate.run.tables.clips import CLIPS, by_span, from_entries
from reelweave.curate.run.tables.columns import Mask, Rows, column, equal, filter_rows, mask_of
from reelweave.curate.run.tables.partitions import Partitions, partition_count, partition_of
from reelweave.curate.source_pass.cut_source import STAGE, source_id
from reelweave.curate.sources.inputs import SourceRef

_ENTRIES, _RECORDS = 4096, 1 << 16
"""Entries that workers wrote one by one and that become a segment together, so that a restart reads few files.

So many entries, or entries of so many records: these take 2.4 KB each as Python objects, and long sources come first.
"""

_OPEN = -1
_SCORE_NAMES = "records.list.element.scores.key_value.key"
"""Leaf of a segment; read as texts rather than as a dictionary, names of scores take half as long again."""
_ENTRY = "entry"
_STATES = ("kept", "filtered", "duplicate", "failed")


class ClosedSources:
    """Clips of all closed sources; those closed in this run become segments of the ledger as it goes on.

    Clips lie in partitions; of a source this holds numbers and tags only.

    Args:
        ledger: Entries of this run and of earlier ones.
        fingerprint: Digest of the configuration of the pass.
        sources: All sources, sorted by URI; their numbers are their places here.
        earlier: Digests of the same configuration by earlier revisions of the code, the newest first; their entries
            count for sources without a newer one.

    Attributes:
        sources: See above.
        numbers: Number of each source, by URI.
        ids: `source_id` of each source.
        partitions: Number of partitions.
        version: Number that grows whenever clips change.
        fingerprints: The digest of the configuration, and the earlier ones that are used.
        never_measured: Scores that clips of some sources have no value of.
    """

    def __init__(
        self, ledger: Ledger, fingerprint: str, sources: Sequence[SourceRef], earlier: Sequence[str] = ()
    ) -> None:
        self._ledger, self.fingerprints, self.sources = ledger, (fingerprint, *earlier), sources
        self.numbers: Mapping[str, int] = _Numbers(sources)
        self.partitions, self.version = partition_count(len(sources)), 0
        schema = CLIPS.append(pa.field(_ENTRY, pa.int32()))
        self._clips = Partitions(self.partitions, schema, self.partitions > 1)
        self._whole = np.zeros(self.partitions, np.int32)  # version of each that was put in order
        self._entry = np.full(len(sources), _OPEN, np.int32)  # table that holds the clips of each source
        self._row = np.zeros(len(sources), np.int32)  # its row among the tags of this table
        self._tags: list[pa.Array | None] = []
        self._cpu_s, self._pixel_s = np.zeros(len(sources)), np.zeros(len(sources))
        self._counts = np.zeros((len(sources), len(_STATES)), np.int32)
        self._text_ids = np.zeros(len(sources), "S16")
        self._of = np.zeros(len(sources), np.int16)  # place among fingerprints of that of each source's entry
        self._lacks = np.zeros(len(sources), bool)
        self.never_measured: set[str] = set()
        self._loose: dict[int, SourceSummary] = {}
        self._new: dict[int, SourceSummary] = {}  # whose clips are in no partition yet
        self._loose_records = 0
        self.ids = pa.array([source_id(source) for source in sources], pa.string())
        ids = TextPlaces(self.ids)
        for at, name in enumerate(self.fingerprints):
            waiting = self._entry == _OPEN
            if not waiting.any():
                break
            for entries in ledger.entries.tables(STAGE, name, source_summary, [_SCORE_NAMES]):
                source_indices = ids.find(column(entries, "id"))
                mine = (source_indices >= 0) & waiting[source_indices]
                self._of[source_indices[mine]] = at
                self._keep(filter_rows(entries, mine), source_indices[mine])

    def add(self, uri: str, summary: SourceSummary, fingerprint: str = "") -> None:
        """Add a source that is closed in the ledger; many become a segment.

        Args:
            uri: URI of the source.
            summary: Its entry.
            fingerprint: Digest of the configuration of the entry; "" for the present one.
        """
        index = self.numbers[uri]
        self._of[index] = self.fingerprints.index(fingerprint) if fingerprint else 0
        self._lacks[index] = False
        self._loose[index] = self._new[index] = summary
        self._loose_records += len(summary.records)
        self._entry[index], self._text_ids[index] = len(self._tags), b""  # of the table that they become
        self._cpu_s[index], self._pixel_s[index] = summary.cpu_s or 0.0, summary.pixel_s or 0.0
        states = Counter(record.state for record in summary.records)
        self._counts[index] = [states[state] for state in _STATES]
        self.version += 1
        if len(self._loose) >= _ENTRIES or self._loose_records >= _RECORDS:
            for at in {int(self._of[index]) for index in self._loose}:
                entries = {
                    source_id(self.sources[index]): summary
                    for index, summary in self._loose.items()
                    if self._of[index] == at
                }
                self._ledger.entries.append(STAGE, self.fingerprints[at], entries)
            self._settle()
            self._loose, self._loose_records = {}, 0

    def drop(self, uris: Sequence[str]) -> None:
        """Count sources as not closed."""
        self._settle()
        for uri in uris:
            index = self.numbers[uri]
            self._entry[index] = _OPEN
            self._loose.pop(index, None)
        self.version += 1

    def __contains__(self, uri: str) -> bool:
        return bool(self._entry[self.numbers[uri]] != _OPEN)

    def unclosed_uris(self) -> set[str]:
        """Return the URIs of the sources that are not closed; to ask for each source takes far longer."""
        return {self.sources[index].uri for index in np.flatnonzero(self._entry == _OPEN).tolist()}

    def fingerprint(self, index: int) -> str:
        """Return the digest of the configuration under which a source was closed."""
        return self.fingerprints[int(self._of[index])]

    @property
    def closed(self) -> Mask:
        """Mask of the sources that are closed."""
        return np.asarray(self._entry != _OPEN, bool)

    @property
    def older(self) -> Mask:
        """Mask of the sources that only an earlier revision of the code closed."""
        return np.asarray((self._of > 0) & self.closed, bool)

    @property
    def lacking(self) -> Mask:
        """Mask of the sources whose clips lack a score, or its present version."""
        return np.asarray(self._lacks & self.closed, bool)

    def cpu_s(self, uri: str) -> float:
        """Return the processor seconds of the pass over a source; 0 for one that failed."""
        return float(self._cpu_s[self.numbers[uri]])

    def total_cpu_s(self, selected: Mask) -> float:
        """Return the processor seconds of the passes over the wanted sources, as they were measured."""
        return float(self._cpu_s[selected].sum())

    def tags(self, index: int) -> Mapping[str, str]:
        """Return the text in the container of a source."""
        if index in self._new:
            return self._new[index].tags or {}
        tags = None if self._entry[index] == _OPEN else self._tags[self._entry[index]]
        return {} if tags is None else dict(tags[int(self._row[index])].as_py() or ())

    def text_ids(self, source_indices: Rows) -> pa.Array:
        """Return `text_id` of sources."""
        self._settle()
        new = source_indices[self._text_ids[source_indices] == b""]
        for entry in np.unique(self._entry[new]).tolist():
            of_entry = new[self._entry[new] == entry]
            tags = None if entry == _OPEN else self._tags[entry]
            source_tags = (
                [None] * len(of_entry)
                if tags is None
                else tags.take(pa.array(self._row[of_entry])).to_pylist()
            )
            for index, tag_pairs in zip(of_entry.tolist(), source_tags, strict=True):
                source = self.sources[index]
                self._text_ids[index] = text_id(
                    source.uri, source.caption, dict(tag_pairs or ()), source.sidecars, source.captions
                )
        return pa.array(self._text_ids[source_indices], pa.binary()).cast(pa.string())

    def segment_text_ids(self, clips: pa.Table, texts: pa.Array) -> pa.Array:
        """Return `text_ids` of clips' sources, those of listed segments replaced by that of their own caption."""
        in_segment = mask_of(pc.is_valid(column(clips, "segment")))
        some = clips.select(["source", "segment"]).filter(pa.array(in_segment))
        segment_ids: list[str] = []
        for index, segment in zip(
            *(column(some, name).to_pylist() for name in ("source", "segment")), strict=True
        ):
            source = self.sources[index]
            caption, tags = source.caption_of(segment), self.tags(index)
            segment_ids.append(text_id(source.uri, caption, tags, source.sidecars))
        return pc.replace_with_mask(texts, pa.array(in_segment), pa.array(segment_ids, pa.string()))

    @property
    def pixel_s(self) -> float:
        """Pixels times seconds of all closed sources."""
        return float(self._pixel_s[self._entry != _OPEN].sum())

    def states(self) -> Counter[str]:
        """Return the number of clips per state, before they are judged."""
        sums = self._counts[self._entry != _OPEN].sum(axis=0).tolist()
        return Counter({state: count for state, count in zip(_STATES, sums, strict=True) if count})

    def failed_uris(self) -> list[str]:
        """Return the URIs of closed sources with a failed clip, or that failed themselves."""
        failed = (self._entry != _OPEN) & (self._counts[:, _STATES.index("failed")] > 0)
        return [self.sources[index].uri for index in np.flatnonzero(failed).tolist()]

    @property
    def failed_whole(self) -> int:
        """Number of closed sources of which all failed."""
        failed = self._counts[:, _STATES.index("failed")]
        return int(((self._entry != _OPEN) & (failed > 0) & (failed == self._counts.sum(axis=1))).sum())

    def clips(self, partition: int) -> pa.Table:
        """Return the clips of a partition's sources, by source and span."""
        self._settle()
        if self._whole[partition] == self.version + 1:
            return self._clips.read(partition).drop_columns([_ENTRY])
        table = self._clips.stack(partition)
        source_indices = column(table, "source").to_numpy()
        current = by_span(filter_rows(table, self._entry[source_indices] == column(table, _ENTRY).to_numpy()))
        if current is not table or self._clips.parts(partition) > 1:
            current = current.combine_chunks()
            self._clips.replace(partition, current)
        self._whole[partition] = self.version + 1
        return current.drop_columns([_ENTRY])

    def _settle(self) -> None:
        """Put the clips of this run that are in no partition yet into theirs."""
        if self._new:
            new, self._new = self._new, {}
            self._keep(pa.table(to_columns(list(new.values()))), np.array(list(new), np.int64))

    def _keep(self, entries: pa.Table, source_indices: Rows) -> None:
        """Add entries of the sources with these numbers."""
        if not len(source_indices):
            return
        entry = len(self._tags)
        # What a source's entry says of the whole source.
        self._text_ids[source_indices] = b""
        self._entry[source_indices], self._row[source_indices] = entry, np.arange(len(source_indices))
        self._tags.append(column(entries, "tags") if "tags" in entries.column_names else None)
        for name, values in (("cpu_s", self._cpu_s), ("pixel_s", self._pixel_s)):
            has_column = name in entries.column_names
            values[source_indices] = (
                pc.fill_null(column(entries, name), 0.0).to_numpy() if has_column else 0.0
            )
        # Its clips, and how many have each state.
        clips = from_entries(entries, pa.array(source_indices, pa.int32()))
        clip_sources = column(clips, "source").to_numpy()
        self._counts[source_indices] = 0
        states = column(clips, "state").dictionary_encode()
        for code, state in enumerate(states.dictionary.to_pylist()):
            in_state, counts = np.unique(clip_sources[states.indices.to_numpy() == code], return_counts=True)
            self._counts[in_state, _STATES.index(state)] = counts
        self._lacks[source_indices] = False
        # Scores that were added since the entry was written have to be measured.
        if ADDED:
            measured = "measured" in entries.column_names
            measured_names = column(entries, "measured").to_pylist() if measured else [None] * len(entries)
            with_clips = np.isin(source_indices, clip_sources[~equal(clips, "sha256", "")])
            for index, has in zip(
                source_indices[with_clips].tolist(), compress(measured_names, with_clips), strict=True
            ):
                self._lacks[index] = bool(lacking(dict(has or ())))
                self.never_measured |= never_measured(dict(has or ()))
        clips = clips.append_column(_ENTRY, pa.array(np.full(len(clips), entry, np.int32)))
        self._clips.scatter(clips, partition_of(clip_sources))
        self.version += 1


class _Numbers(Mapping[str, int]):
    """Places of URIs among sorted sources, in less memory than a dict."""

    def __init__(self, sources: Sequence[SourceRef]) -> None:
        self._sources = sources

    def __getitem__(self, uri: str) -> int:
        index = bisect.bisect_left(self._sources, uri, key=lambda source: source.uri)
        if index == len(self._sources) or self._sources[index].uri != uri:
            raise KeyError(uri)
        return index

    def __iter__(self) -> Iterator[str]:
        return (source.uri for source in self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def text_id(
    uri: str, caption: str | None, tags: Mapping[str, str], sidecars: str, captions: Sequence[str] = ()
) -> str:
    """Return a digest of all text that came with a source, which captions of its clips may be made of."""
    further = [*([sidecars] if sidecars else ()), *([list(captions)] if captions else ())]
    return digest(uri, caption or "", dict(tags), *further)[:16]
