"""Samples that a stream uses in part: clips as stills, cropped pictures, no caption. Said at its start."""

import logging

import numpy as np

from reelweave.loader.base.arrays import Flags
from reelweave.loader.base.columns import parts
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.crops import large_crops
from reelweave.loader.buckets.stills import stills
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.stream.checks.unassigned import (
    WORTH_A_WARNING,
    distinct_stages,
    drawn_mask,
    words_of_stage,
)
from reelweave.loader.stream.curriculum_plans import CurriculumPlans

_log = logging.getLogger(__name__)


def log_partial(source: SampleSource, stages: CurriculumPlans) -> None:
    """Log how many clips train as stills beside longer buckets, lose much of their picture, or have no caption.

    Each is a warning from 1 % of the samples on.

    Args:
        source: samples of the stream.
        stages: plans of the stream.
    """
    drawn_N = drawn_mask(source)
    samples = int(drawn_N.sum())
    if any(config.max_text_tokens for config in stages.buckets) and (
        silent := _count_uncaptioned(source.plan_index, drawn_N)
    ):
        _log_share(
            silent, samples, "have no caption, and train as videos without text (text_tokens of the index)"
        )
    for stage, config in distinct_stages(stages):
        assignment, of_stage = stages.stage_assignment(stage), words_of_stage(stages.given[stage])
        if clips := stills(source.plan_index, config, assignment, drawn_N):
            what = f"are clips that train as stills{of_stage}: {clips.words} (stream.buckets.frames)"
            _log_share(len(clips.rows), samples, what)
        crops = large_crops(source.plan_index, assignment, drawn_N)
        if crops.samples:
            what = f"lose{of_stage} {crops.words} (stream.buckets.sizes; max_crop limits it)"
            _log_share(crops.samples, samples, what)


def _count_uncaptioned(index: PlanIndex, drawn_N: Flags) -> int:
    return sum(
        int(np.count_nonzero(drawn_N[part] & (index.text_tokens[part] == 0))) for part in parts(len(index))
    )


def _log_share(count: int, samples: int, what: str) -> None:
    share = count / samples
    level = logging.WARNING if share >= WORTH_A_WARNING else logging.INFO
    _log.log(level, "%s of %s samples (%.2f%%) %s", f"{count:,}", f"{samples:,}", 100 * share, what)
