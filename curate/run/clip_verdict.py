"""State of one clip by its own scores and results, for workers; `reelweave.curate.run.tables.judge` does as much."""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reelweave.curate.caption.types import NO_CAPTION, VARIANTS, Caption
from reelweave.curate.config import BinConfig, ShardConfig
from reelweave.curate.filters import FilterConfig
from reelweave.curate.filters.decision import by_stage, first_rejection
from reelweave.curate.ledger.records import ClipEmbedding, ClipResult, ClipScores, Record, TextEmbedding
from reelweave.curate.models.clip_frames import Fault
from reelweave.loader.text import count_tokens


def scores_of_clip(record: Record, results: Mapping[str, ClipResult]) -> dict[str, float]:
    """Return all scores of a clip: of the pass over its source, and of later stages."""
    scores = record.scores
    for result in results.values():
        if isinstance(result, ClipScores | ClipEmbedding) and result.scores:
            scores = scores | result.scores
    return scores


def judge_record(
    record: Record,
    results: Mapping[str, ClipResult],
    filters: FilterConfig,
    shard: ShardConfig,
    waiting: Mapping[str, Sequence[str]],
) -> Record:
    """Return a clip's record after its own scores and results, before it is compared with other clips.

    Args:
        record: Record after the pass over its source.
        results: Results of later stages, by name, in the order of the stages.
        filters: Thresholds.
        shard: Splits and bins.
        waiting: Scores that each stage writes; their thresholds wait for its result.
    """
    if record.state != "kept":
        return record
    # Thresholds of the clip's own scores, then those of each stage, in their order; the first one decides.
    scores = scores_of_clip(record, results)
    at_once, later = by_stage(filters, waiting)
    rejection = first_rejection(scores, at_once)
    for stage, result in results.items():
        if rejection is None and isinstance(result, Fault) and not stage.startswith(VARIANTS):
            return replace(record, scores=scores, state="failed", stage=stage, reason=result.reason)
        rejection = rejection or first_rejection(scores, later.get(stage, ()))
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
    # A clip that passes has its caption, split and bin.
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
    caption = results.get("captions")
    return caption if isinstance(caption, Caption) else NO_CAPTION


def split_of(source_sha256: str, val_share: float) -> str:
    """Return the split of all clips of a source, decided by its content, so that it never changes sides."""
    return "val" if int(source_sha256[:12], 16) < val_share * 16**12 else "train"


def bin_of(record: Record, config: BinConfig) -> str:
    """Return the group of shapes of a clip, such as "aspect_1-frames_0"; "all" when nothing is grouped.

    A number counts the edges at or below the value, so that every clip has a group.
    """
    values = {
        "aspect": record.width / record.height,
        "short_side_px": min(record.width, record.height),
        "frames": record.frames,
    }
    edges = {name: sorted(getattr(config, name)) for name in values}
    groups = [f"{name}_{bisect.bisect_right(edges[name], values[name])}" for name in values if edges[name]]
    return "-".join(groups) or "all"
