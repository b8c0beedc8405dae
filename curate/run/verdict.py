"""From all that is known of all clips to one final state each: thresholds, faults, take-downs, duplicates.

Metadata only: nothing here reads a clip, so that another threshold costs no more than a pass over a table.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from curate.config import CurateConfig
from curate.dedup import Duplicate
from curate.filters import decide
from curate.records import Record, Row
from curate.run.shard import bin_of, split_of
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import TakeDowns, emptied
from loader.text import count_tokens

_AFTER_FILTERS = ("captions", "text_embed")
"""Stages whose faults count only for clips that pass all thresholds."""


def scored(record: Record, results: Mapping[str, Row]) -> dict[str, float]:
    """All scores of a clip: those of the cut pass, and those that later stages gave as ``scores``."""
    scores = dict(record.scores)
    for result in results.values():
        scores |= result.get("scores", {})
    return scores


def judged(
    record: Record, results: Mapping[str, Row], config: CurateConfig, pending: Collection[str] = ()
) -> Record:
    """A clip after its own scores and results, before it is compared with others.

    Args:
        record: as the cut pass left it.
        results: of later stages, by name.
        config: thresholds, splits, bins.
        pending: scores that a stage still to come will write; their thresholds wait.
    """
    if record.state != "kept":
        return record
    for stage, result in results.items():
        if stage not in _AFTER_FILTERS and "fault" in result:
            return replace(record, state="failed", stage=stage, reason=result["fault"])
    record = replace(record, scores=scored(record, results))
    rejection = decide(record.scores, config.filters, pending)
    if rejection is not None:
        return replace(
            record,
            state=rejection.state,
            stage=rejection.stage,
            reason=rejection.reason,
            score=rejection.score,
            threshold=rejection.threshold,
        )
    for stage in _AFTER_FILTERS:
        if "fault" in results.get(stage, {}):
            return replace(record, state="failed", stage=stage, reason=results[stage]["fault"])
    caption = results.get("captions", {})
    text = caption.get("text", "")
    return replace(
        record,
        caption=text,
        caption_source=caption.get("source", "none"),
        caption_provenance=caption.get("provenance", {}),
        text_tokens=results.get("text_embed", {}).get("tokens", count_tokens(text)),
        split=split_of(record.source_sha256, config.shard.val_share),
        bin=bin_of(record, config.shard.bins),
    )


def taken_down(records: Iterable[Record], down: TakeDowns) -> list[Record]:
    """Records after take-downs of single samples: what was removed once stays out."""
    found = ((record, down.of(record)) for record in records)
    return [emptied(record, removal) if removal else record for record, removal in found]


def without_copies(records: Iterable[Record]) -> list[Record]:
    """Calls every second clip of one key a duplicate of the first; one source under two names gives these.

    ``records`` come sorted, so that which name is kept does not depend on the order of the work.
    """
    first: dict[str, Record] = {}
    result = []
    for record in records:
        kept = first.setdefault(record.key, record) if record.state == "kept" and record.key else record
        if kept is not record:
            reason = f"the same span of the same content as in {kept.source}"
            record = duplicate(record, kept.key or "", "dedup.source", reason)
        result.append(record)
    return result


def without_duplicates(records: Sequence[Record], found: Mapping[str, Duplicate]) -> list[Record]:
    """Records after `curate.dedup`: ``found`` says by key what a clip is a duplicate of.

    What is called a copy of a clip that is now a duplicate itself becomes a copy of the one kept.
    """
    result = []
    for record in records:
        gone = found.get(record.duplicate_of or "") if record.state == "duplicate" else None
        if gone is not None:
            record = replace(record, duplicate_of=gone.of)
        twin = found.get(record.key or "") if record.state == "kept" else None
        if twin is not None:
            record = duplicate(record, twin.of, f"dedup.{twin.kind}", twin.reason, twin.score, twin.threshold)
        result.append(record)
    return result


def duplicate(
    record: Record,
    of: str,
    stage: str,
    reason: str,
    score: float | None = None,
    threshold: float | None = None,
) -> Record:
    """The record as a duplicate of the sample ``of``."""
    return replace(
        record,
        state="duplicate",
        stage=stage,
        reason=reason,
        duplicate_of=of,
        score=score,
        threshold=threshold,
    )


def described(record: Record, source: SourceRef) -> Record:
    """The record with what the input list said of its source."""
    return replace(record, attributes=dict(source.attributes))
