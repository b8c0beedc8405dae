"""Removal of taken-down clips from the ledger.

It may be repeated: the next take-down or curation completes an interrupted one.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from curate.caption.types import Caption
from curate.ledger.ledger import LEDGER, Ledger, digest
from curate.ledger.records import Record, SourceSummary, clip_result, source_summary
from curate.takedown.takedown import TakeDowns, emptied

CUT, CAPTIONS, TEXT_EMBED, SHARD, PARTS = "cut", "captions", "text_embed", "shard", "parts"

_NOTE_SOURCES = "inputs"
_TEXT = "text-"  # prefix of the names of text embeddings


def forget(ledger: Ledger, down: TakeDowns) -> None:
    """Remove clips, arrays, captions, embeddings and scores of everything that was taken down.

    Arrays and clips of no closed source, and what is known of parts, are removed too. A killed worker left
    them, and their source is unknown.
    """
    if not down.removals:
        return
    entries = [
        (name, identity, entry)
        for name in ledger.fingerprints(CUT)
        for identity, entry in ledger.closed(CUT, name, source_summary).items()
    ]
    records = [record for _, _, entry in entries for record in entry.records]
    gone = {record.key for record in records if record.key and down.of(record)} | down.keys.keys()

    def of_them(identity: str) -> bool:
        return identity.split("-", 1)[0] in gone

    known = {record.clip_id for record in records if record.sha256}
    ledger.drop_clips([clip for clip in ledger.staged_clips() if of_them(clip) or clip not in known])
    for stage in ("embed", CAPTIONS, *ledger.stages("stages.")):
        for name in ledger.fingerprints(stage):
            ledger.forget(stage, name, of_them)
    _forget_texts(ledger)
    sources = {f"{identity}-{name}" for name, identity, _ in entries}
    for name in ledger.array_names():
        if not name.startswith(_TEXT) and name not in sources:
            ledger.drop_arrays(name)
    ledger.forget_arrays(of_them, sources)
    for folder in (SHARD, PARTS):
        ledger.storage.delete_tree(f"{LEDGER}{folder}/")
    _forget_inputs(ledger, down, records)
    # These entries map clips to sources, so they are removed last.
    for name in ledger.fingerprints(CUT):
        before = {identity: entry for other, identity, entry in entries if other == name}
        after = {identity: _emptied_entry(entry, down) for identity, entry in before.items()}
        changed = {identity for identity, entry in before.items() if after[identity] != entry}
        ledger.forget(CUT, name, changed.__contains__)
        for identity in changed:
            if left := after[identity]:
                ledger.close(CUT, name, identity, left)


def _emptied_entry(entry: SourceSummary, down: TakeDowns) -> SourceSummary | None:
    """Return a source's entry without the removed clips; None when the whole source is removed."""
    if any(record.source in down.sources for record in entry.records):
        return None
    removals = [(record, down.of(record)) for record in entry.records]
    if not any(removal for _, removal in removals):
        return entry
    after = tuple(emptied(record, removal) if removal else record for record, removal in removals)
    tags = (entry.tags or {}) if any(record.sha256 for record in after) else {}
    return replace(entry, records=after, tags=tags)


def _forget_texts(ledger: Ledger) -> None:
    """Remove the embeddings of texts that are no clip's caption any more."""
    names = ledger.fingerprints(TEXT_EMBED)
    arrays = [name for name in ledger.array_names() if name.startswith(_TEXT)]
    if not names and not arrays:
        return
    used = {digest(text) for text in chain([""], _captions(ledger))}
    for name in names:
        ledger.forget(TEXT_EMBED, name, lambda identity: identity not in used)
    for name in arrays:
        if name.rsplit("-", 1)[-1] not in used:
            ledger.drop_arrays(name)


def _captions(ledger: Ledger) -> Iterator[str]:
    for name in ledger.fingerprints(CAPTIONS):
        for found in ledger.closed(CAPTIONS, name, clip_result).values():
            yield found.text if isinstance(found, Caption) else ""


def _forget_inputs(ledger: Ledger, down: TakeDowns, records: list[Record]) -> None:
    """Remove the captions and attributes in input lists of sources without remaining clips."""
    note = ledger.read_note(_NOTE_SOURCES)
    if note is None:
        return
    cut = {record.source for record in records if record.key}
    left = {record.source for record in records if record.sha256 and not down.of(record)}
    empty: dict[str, object] = {"caption": None, "attributes": {}}
    sources = [
        {**row, **empty} if row["uri"] in down.sources or row["uri"] in cut - left else row
        for row in note["sources"]
    ]
    if sources != note["sources"]:
        ledger.write_note(_NOTE_SOURCES, {**note, "sources": sources})
