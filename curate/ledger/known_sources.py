"""Sources as earlier runs found them, beside those that the inputs name now."""

from collections.abc import Sequence
from dataclasses import replace

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.sources.addresses import is_unanswered
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.sources.segments import Segment, from_stored
from reelweave.loader.text import pluralize


def as_known(ledger: Ledger, sources: Sequence[SourceRef]) -> tuple[Sequence[SourceRef], int]:
    """Return sources, those whose servers give no answer now as a finished dataset knows them, and their number."""
    silent = {source.uri for source in sources if source.undone and is_unanswered(source.fault or "")}
    if not silent:
        return sources, 0
    rows = (ledger.notes.read("inputs") or {"sources": []})["sources"]
    known = {row["uri"]: SourceRef.from_stored(row) for row in rows if row["uri"] in silent}
    facts = ("size", "version", "fault", "sidecars")
    return [
        replace(source, undone=False, **{name: getattr(known[source.uri], name) for name in facts})
        if source.uri in known
        else source
        for source in sources
    ], len(known)


def join_runs(
    ledger: Ledger, inputs: Sequence[str], sources: Sequence[SourceRef]
) -> tuple[list[str], list[SourceRef], tuple[str, ...]]:
    """Return inputs and sources of all runs, and notes; a source that is named again is looked up anew."""
    before = ledger.notes.read("inputs") or {"inputs": [], "sources": []}
    listed = {source.uri for source in sources}
    rows = [row for row in before["sources"] if row["uri"] not in listed]
    # A wrong line of a list that was read again is mended, or would have been found again.
    earlier_sources = [
        SourceRef.from_stored(row)
        for row in rows
        if not (row["fault"] and row["uri"].rpartition("#")[0] in inputs)
    ]
    all_inputs = list(dict.fromkeys([*before["inputs"], *inputs]))
    notes: tuple[str, ...] = ()
    if earlier_sources:
        notes = (
            f"kept, though not in the input: {pluralize(len(earlier_sources), 'source')} of earlier runs",
        )
    spans = {row["uri"]: _spans(from_stored(row.get("segments", ()))) for row in before["sources"]}
    if changed := sum(
        spans.get(source.uri, source_spans) != source_spans
        for source in sources
        for source_spans in [_spans(source.segments)]
    ):
        notes += (
            f"{pluralize(changed, 'film is', 'films are')} listed with other segments than before, which replace the"
            " earlier ones",
        )
    return all_inputs, sorted([*sources, *earlier_sources], key=lambda source: source.uri), notes


def _spans(segments: Sequence[Segment]) -> list[tuple[str, float, float, float]]:
    return [segment.span for segment in segments]
