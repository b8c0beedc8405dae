"""Removal of taken-down clips from the ledger.

It may be repeated: the next take-down or curation completes an interrupted one.
"""

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from itertools import chain

from reelweave.curate.caption.types import VARIANTS, Caption
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record, SourceSummary, clip_result, source_summary
from reelweave.curate.takedown.takedown import TakeDowns, empty_record

CUT, CAPTIONS, MATCH, TEXT_EMBED, SHARD, PARTS = (
    "cut", "captions", "caption_match", "text_embed", "shard", "parts"
)  # fmt: skip

_NOTE_SOURCES = "inputs"
_TEXT = "text-"  # prefix of the names of text embeddings


def forget(ledger: Ledger, down: TakeDowns) -> None:
    """Remove clips, arrays, captions, embeddings and scores of everything that was taken down.

    Arrays and clips of no closed source, and what is known of parts, are removed too. A killed worker left
    them, and their source is unknown.
    """
    if not down.removals:
        return
    concerned: dict[tuple[str, str], SourceSummary] = {}
    gone, sources = {*down.keys}, set[str]()
    orphans = set(ledger.blobs.staged_clips())
    with_clips, keep_some = set[str](), set[str]()
    segments = set[tuple[str, int]]()
    for name in ledger.entries.fingerprints(CUT):
        for identity, entry in ledger.entries.latest(CUT, name, source_summary):
            stays = [record for record in entry.records if not down.of(record)]
            if len(stays) < len(entry.records):
                concerned[name, identity] = entry
                gone |= {record.key for record in entry.records if record.key and down.of(record)}
            segments |= _segments(entry.records) - _segments(stays)
            sources.add(f"{identity}-{name}")
            orphans -= {record.clip_id for record in entry.records if record.sha256}
            with_clips |= {record.source for record in entry.records if record.key}
            keep_some |= {record.source for record in stays if record.sha256}

    def of_them(identity: str) -> bool:
        return identity.split("-", 1)[0] in gone

    ledger.blobs.drop_clips(
        [clip for clip in ledger.blobs.staged_clips() if of_them(clip) or clip in orphans]
    )
    named = (stage for start in (VARIANTS, "stages.") for stage in ledger.entries.stages(start))
    for stage in ("embed", CAPTIONS, MATCH, *named):
        for name in ledger.entries.fingerprints(stage):
            ledger.entries.forget(stage, name, of_them)
    _forget_texts(ledger)
    for name in ledger.blobs.array_names():
        if not name.startswith(_TEXT) and name not in sources:
            ledger.blobs.drop_arrays(name)
    ledger.blobs.forget_arrays(of_them, _with_keys(ledger, gone))
    for folder in (SHARD, PARTS):
        ledger.storage.delete_tree(f"{LEDGER}{folder}/")
    _forget_inputs(ledger, down, with_clips - keep_some, segments)
    # These entries map clips to sources, so they are removed last.
    for name in ledger.entries.fingerprints(CUT):
        after = {
            identity: emptied
            for (other, identity), entry in concerned.items()
            if other == name and (emptied := _emptied_entry(entry, down)) != entry
        }
        ledger.entries.forget(CUT, name, after.__contains__)
        for identity, emptied in after.items():
            if emptied:
                ledger.entries.write(CUT, name, identity, emptied)


def _with_keys(ledger: Ledger, keys: Set[str]) -> Iterator[str]:
    """Yield the names of the arrays of sources with one of these keys: there may be many without."""
    for name in ledger.entries.fingerprints(CUT):
        for identity, entry in ledger.entries.latest(CUT, name, source_summary):
            if any(record.key in keys for record in entry.records):
                yield f"{identity}-{name}"


def _emptied_entry(entry: SourceSummary, down: TakeDowns) -> SourceSummary | None:
    """Return a source's entry without the removed clips; None when the whole source is removed."""
    if any(record.source in down.sources for record in entry.records):
        return None
    removals = [(record, down.of(record)) for record in entry.records]
    if not any(removal for _, removal in removals):
        return entry
    after = tuple(empty_record(record, removal) if removal else record for record, removal in removals)
    tags = (entry.tags or {}) if any(record.sha256 for record in after) else {}
    return replace(entry, records=after, tags=tags)


def _forget_texts(ledger: Ledger) -> None:
    """Remove the embeddings of texts that are no clip's caption any more."""
    names = ledger.entries.fingerprints(TEXT_EMBED)
    arrays = [name for name in ledger.blobs.array_names() if name.startswith(_TEXT)]
    if not names and not arrays:
        return
    used = {digest(text) for text in chain([""], _captions(ledger))}
    for name in names:
        ledger.entries.forget(TEXT_EMBED, name, lambda identity: identity not in used)
    for name in arrays:
        if name.rsplit("-", 1)[-1] not in used:
            ledger.blobs.drop_arrays(name)


def _captions(ledger: Ledger) -> Iterator[str]:
    for name in ledger.entries.fingerprints(CAPTIONS):
        for _, caption in ledger.entries.latest(CAPTIONS, name, clip_result):
            yield caption.text if isinstance(caption, Caption) else ""


def _segments(records: Iterable[Record]) -> set[tuple[str, int]]:
    """Return the listed segments, with their sources, of which there are clips."""
    return {
        (record.source, record.segment) for record in records if record.segment is not None and record.key
    }


def _forget_inputs(
    ledger: Ledger, down: TakeDowns, emptied_sources: Set[str], segments: Set[tuple[str, int]]
) -> None:
    """Remove the captions and attributes in input lists of sources, and of segments, without remaining clips."""
    note = ledger.notes.read(_NOTE_SOURCES)
    if note is None:
        return
    empty: dict[str, object] = {"caption": None, "attributes": {}}
    sources = []
    for row in note["sources"]:
        removes_source = row["uri"] in down.sources or row["uri"] in emptied_sources
        if "segments" in row:  # their spans stay: clips are found by them
            new_segments = [
                {**segment, **empty} if removes_source or (row["uri"], index) in segments else segment
                for index, segment in enumerate(row["segments"])
            ]
            row = {**row, "segments": new_segments}
        if removes_source:
            row = {name: value for name, value in row.items() if name != "captions"} | empty
        sources.append(row)
    if sources != note["sources"]:
        ledger.notes.write(_NOTE_SOURCES, {**note, "sources": sources})
