"""Final state of every clip: thresholds, faults, take-downs, duplicates.

Metadata only: nothing here reads a clip, so that another threshold costs no more than a pass over a table.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from curate.caption.types import NO_CAPTION, Caption
from curate.config import ShardConfig
from curate.dedup import Duplicate
from curate.filters import FilterConfig, decide
from curate.models.clip_frames import Fault
from curate.records import ClipEmbedding, ClipResult, ClipScores, Record, TextEmbedding
from curate.run.shard import bin_of, split_of
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import TakeDowns, emptied
from loader.text import count_tokens

_AFTER_FILTERS = ("captions", "text_embed")
"""Stages whose faults count only for clips that pass all thresholds."""


def scored(record: Record, results: Mapping[str, ClipResult]) -> dict[str, float]:
    """Return all scores of a clip: of the pass over its source, and of later stages."""
    scores = record.scores
    for result in results.values():
        if isinstance(result, ClipScores | ClipEmbedding) and result.scores:
            scores = scores | result.scores
    return scores


def judged(
    record: Record,
    results: Mapping[str, ClipResult],
    filters: FilterConfig,
    shard: ShardConfig,
    pending: Collection[str] = (),
) -> Record:
    """Return a clip's record after its own scores and results, before it is compared with other clips.

    Args:
        record: Record after the pass over its source.
        results: Results of later stages, by name.
        filters: Thresholds.
        shard: Splits and bins.
        pending: Scores that a later stage will write; their thresholds wait.
    """
    if record.state != "kept":
        return record
    for stage, result in results.items():
        if stage not in _AFTER_FILTERS and isinstance(result, Fault):
            return replace(record, state="failed", stage=stage, reason=result.reason)
    scores = scored(record, results)
    rejection = decide(scores, filters, pending)
    if rejection is not None:
        return replace(
            record,
            scores=scores,
            state=rejection.state,
            stage=rejection.stage,
            reason=rejection.reason,
            score=rejection.score,
            threshold=rejection.threshold,
        )
    for stage in _AFTER_FILTERS:
        if isinstance(fault := results.get(stage), Fault):
            return replace(record, scores=scores, state="failed", stage=stage, reason=fault.reason)
    caption, text = caption_of(results), results.get("text_embed")
    return replace(
        record,
        scores=scores,
        caption=caption.text,
        caption_source=caption.source,
        caption_provenance=dict(caption.provenance),
        text_tokens=text.tokens if isinstance(text, TextEmbedding) else count_tokens(caption.text),
        split=split_of(record.source_sha256, shard.val_share),
        bin=bin_of(record, shard.bins),
    )


def caption_of(results: Mapping[str, ClipResult]) -> Caption:
    """Return the caption among the results of a clip, `NO_CAPTION` where there is none."""
    found = results.get("captions")
    return found if isinstance(found, Caption) else NO_CAPTION


def taken_down(records: Iterable[Record], down: TakeDowns) -> list[Record]:
    """Return the records after take-downs of single samples, which stay out for ever."""
    found = ((record, down.of(record)) for record in records)
    return [emptied(record, removal) if removal else record for record, removal in found]


def without_copies(records: Iterable[Record]) -> list[Record]:
    """Return the records, every further clip of one key as a duplicate of the first; two names of a source give these.

    ``records`` are sorted, so that the name that is kept does not depend on the order of the work.
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
    """Return the records after `curate.dedup`, which gave ``found``: the original of each duplicate, by key.

    A copy of a clip that is now a duplicate itself becomes a copy of the one that is kept.
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
    """Return the record as a duplicate of the sample ``of``."""
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
    """Return the record with the attributes of its source in the input list."""
    if record.attributes == source.attributes:
        return record
    return replace(record, attributes=dict(source.attributes))
