"""State of every clip by its own scores and results: `reelweave.curate.run.clip_verdict.judge_record` over columns."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.caption.types import VARIANTS
from reelweave.curate.config import BinConfig, ShardConfig
from reelweave.curate.filters import FilterConfig
from reelweave.curate.filters.decision import Threshold, by_stage
from reelweave.curate.run.clip_verdict import split_of
from reelweave.curate.run.tables.clips import KEPT, SCORE, score_names
from reelweave.curate.run.tables.columns import Mask, column, equal, mask_of, repeat_value, replace_values
from reelweave.curate.run.tables.results import there
from reelweave.loader.text import count_tokens

_IN_WORDS = np.zeros(256, bool)
_IN_WORDS[[*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"]] = True
_AT_ONCE = 1 << 12  # what more texts take is fresh memory each time
_SHAPE = ("width", "height", "frames")


def judge_clips(
    clips: pa.Table,
    results: Mapping[str, pa.Table],
    filters: FilterConfig,
    shard: ShardConfig,
    waiting: Mapping[str, Sequence[str]],
) -> pa.Table:
    """Return clips after their own scores and results, before they are compared with other clips.

    Args:
        clips: Clips after the pass over their source; those that are not kept stay as they are.
        results: Results of later stages, by name and in their order, a row for each clip.
        filters: Thresholds.
        shard: Splits and bins.
        waiting: Scores that each stage writes; their thresholds wait for its result.
    """
    clips = _with_defaults(clips)
    remaining = equal(clips, "state", "kept")
    clips = _add_scores(clips, remaining, results)
    at_once, later = by_stage(filters, waiting)
    clips, remaining = _apply_thresholds(clips, remaining, at_once, remaining)
    for stage, stage_results in results.items():
        clips, remaining = _fail_clips(clips, remaining, stage, stage_results)
        clips, remaining = _apply_thresholds(clips, remaining, later.get(stage, ()), there(stage_results))
    return _add_captions(clips, remaining, results, shard)


def _with_defaults(clips: pa.Table) -> pa.Table:
    """Return clips with the columns that the verdict adds."""
    defaults = {"caption": "", "caption_source": "none", "text_tokens": 0, "split": "train", "bin": "all"}
    for field in KEPT:
        if field.name not in clips.column_names:
            clips = clips.append_column(
                field, repeat_value(defaults.get(field.name, []), field.type, len(clips))
            )
    return clips


def _fail_clips(
    clips: pa.Table, remaining: Mask, stage: str, stage_results: pa.Table
) -> tuple[pa.Table, Mask]:
    """Return clips, those for which a stage has a fault as failed, and which of them are left; variants fail none."""
    if stage.startswith(VARIANTS):
        return clips, remaining
    faults = column(stage_results, "fault")
    failed = remaining & mask_of(pc.is_valid(faults))
    values = {"state": "failed", "stage": stage, "reason": faults.filter(pa.array(failed))}
    return replace_values(clips, failed, values), remaining & ~failed


def _add_scores(clips: pa.Table, remaining: Mask, results: Mapping[str, pa.Table]) -> pa.Table:
    """Return clips with the scores that stages found for those that are left."""
    for stage_results in results.values():
        for name in score_names(stage_results):
            scores = column(stage_results, f"{SCORE}{name}")
            where = remaining & mask_of(pc.is_valid(scores))
            if f"{SCORE}{name}" not in clips.column_names:
                clips = clips.append_column(f"{SCORE}{name}", pa.nulls(len(clips), pa.float64()))
            clips = replace_values(clips, where, {f"{SCORE}{name}": scores.filter(pa.array(where))})
    return clips


def _apply_thresholds(
    clips: pa.Table, remaining: Mask, thresholds: Sequence[Threshold], measured: Mask
) -> tuple[pa.Table, Mask]:
    """Return clips, each with the first threshold that rejects it, and which of them are left.

    Args:
        clips: All clips.
        remaining: Clips to decide on.
        thresholds: Thresholds.
        measured: Clips for which there is a result of the stage that these thresholds wait for.
    """
    codec = _score(clips, "motion_source")
    rows, rejections = [], []
    for threshold in thresholds:
        scores = _score(clips, threshold.name)
        beyond = threshold.rejects(scores)
        out = remaining & measured & (beyond | np.isnan(scores))
        gone = np.flatnonzero(out)
        remaining = remaining & ~out
        for row, score, source in zip(
            gone.tolist(), scores[gone].tolist(), codec[gone].tolist(), strict=True
        ):
            rows.append(row)
            rejections.append(threshold.beyond(score) if beyond[row] else threshold.missing(source))
    order = np.argsort(rows).tolist()
    mask = np.zeros(len(clips), bool)
    mask[rows] = True
    names = ("state", "stage", "reason", "score", "threshold")
    values = {name: [getattr(rejections[index], name) for index in order] for name in names}
    return replace_values(clips, mask, values), remaining


def _score(clips: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a score of each clip, NaN where it was not measured."""
    if f"{SCORE}{name}" not in clips.column_names:
        return np.full(len(clips), np.nan)
    return np.asarray(column(clips, f"{SCORE}{name}").to_numpy(zero_copy_only=False))


def _add_captions(
    clips: pa.Table, remaining: Mask, results: Mapping[str, pa.Table], shard: ShardConfig
) -> pa.Table:
    """Return clips, those that are left with their caption, split and bin."""
    where = pa.array(remaining)
    values: dict[str, pa.Array] = {}
    if "captions" in results:
        captions = results["captions"].filter(where)
        written = pc.is_valid(column(captions, "text"))
        values["caption"] = pc.fill_null(column(captions, "text"), "")
        values["caption_source"] = pc.if_else(written, column(captions, "source"), "none")
        values["caption_provenance"] = fill_maps(column(captions, "provenance"))
    else:
        count = int(remaining.sum())
        values["caption"] = repeat_value("", pa.string(), count)
    tokens = token_counts(values["caption"])
    if "text_embed" in results:
        tokens = pc.coalesce(column(results["text_embed"].filter(where), "tokens"), tokens)
    digests = column(clips, "source_sha256").filter(where).dictionary_encode()
    splits = [split_of(digest, shard.val_share) for digest in digests.dictionary.to_pylist()]
    values["text_tokens"] = tokens
    values["split"] = pa.array(splits, pa.string()).take(digests.indices)
    values["bin"] = _bins(clips.select(_SHAPE).filter(where), shard.bins)
    return replace_values(clips, remaining, values)


def fill_maps(values: pa.Array) -> pa.Array:
    """Return maps, empty ones where there is none."""
    rows = np.arange(len(values))
    rows[mask_of(pc.is_null(values))] = len(values)
    return pa.concat_arrays([values, pa.array([[]], values.type)]).take(pa.array(rows))


def token_counts(texts: pa.Array) -> pa.Array:
    """Return `reelweave.loader.text.count_tokens` of each text; only letters beyond ASCII need its rules."""
    parts = [texts[first : first + _AT_ONCE] for first in range(0, len(texts), _AT_ONCE)]
    counts = np.concatenate([np.zeros(0, np.int32), *map(_ascii_words, parts)])
    for row in np.flatnonzero(~mask_of(pc.string_is_ascii(texts))).tolist():
        counts[row] = count_tokens(texts[row].as_py())
    return pa.array(counts)


def _ascii_words(texts: pa.Array) -> NDArray[np.int32]:
    """Return the number of runs of letters, digits and underscores in each text."""
    texts = texts.cast(pa.large_string())
    _, where, data = texts.buffers()
    ends = np.frombuffer(where, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    if data is None:
        return np.zeros(len(texts), np.int32)
    letters = _IN_WORDS[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]]
    ends = ends - ends[0]
    starts = letters.copy()
    starts[1:] &= ~letters[:-1]
    firsts = ends[:-1][ends[:-1] < ends[1:]]
    starts[firsts] = letters[firsts]
    sums = np.concatenate([np.zeros(1, np.int32), np.cumsum(starts, dtype=np.int32)])
    return np.asarray(np.diff(sums[ends]), np.int32)


def _bins(clips: pa.Table, config: BinConfig) -> pa.Array:
    """Return the bin of each clip; see `reelweave.curate.run.clip_verdict.bin_of`."""
    width, height = (column(clips, name).to_numpy() for name in ("width", "height"))
    values = {
        "aspect": width / height,
        "short_side_px": np.minimum(width, height),
        "frames": column(clips, "frames").to_numpy(),
    }
    groups = [
        pc.binary_join_element_wise(
            name, pa.array(np.searchsorted(edges, column_values, "right")).cast(pa.string()), "_"
        )
        for name, column_values in values.items()
        if (edges := sorted(getattr(config, name)))
    ]
    return (
        pc.binary_join_element_wise(*groups, "-") if groups else repeat_value("all", pa.string(), len(clips))
    )
