"""Samples of a stream that no bucket takes: said at its start, or refused."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from reelweave.loader.base.arrays import Flags, Floats, IndexArray
from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.taking_in import taking_in_rows
from reelweave.loader.buckets.unassigned import Unassigned
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.curriculum_plans import CurriculumPlans

WORTH_A_WARNING = 0.01
"""Share of samples without a bucket from which rank 0 logs a warning."""

_MOST_REASONS = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _LeftOut:
    """Samples that no bucket of a curriculum stage takes.

    Attributes:
        stage: index of the stage in the configuration.
        config: buckets of the stage.
        samples: number of samples of the source.
        found: those without a bucket.
    """

    stage: int
    config: BucketConfig
    samples: int
    found: Unassigned

    @property
    def share(self) -> float:
        """Share of samples without a bucket."""
        return len(self.found) / max(1, self.samples)


@dataclass
class _Tally:
    """Samples without a bucket for one reason; ``frames`` has their numbers of frames if these are too few."""

    frames: list[int] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0

    def describe(self, reason: str) -> str:
        if self.frames:
            shortest, longest = min(self.frames), max(self.frames)
            reason = f"{shortest if shortest == longest else f'{shortest} to {longest}'} frames, {reason}"
        return f"{self.samples:,} ({self.seconds:,.0f} s) since {reason}"


def check_unassigned(source: SampleSource, stages: CurriculumPlans, max_share: float | None) -> None:
    """Check the share of samples that no bucket takes.

    Args:
        source: samples of the stream.
        stages: plans of the stream.
        max_share: maximum share; None checks nothing.

    Raises:
        UsageError: the share is larger in some stage.
    """
    if max_share is None:
        return
    for left_out in _left_out(source, stages):
        if left_out.share > max_share:
            raise UsageError(
                f"{_reasons_sentence(left_out, source.plan_index)}. That is more than"
                f" stream.max_unassigned_share={max_share:g}: change the buckets, or raise it"
            )


def log_unassigned(source: SampleSource, stages: CurriculumPlans) -> None:
    """Log how many samples no bucket takes and what would take them in; a warning from 1 % on.

    Args:
        source: samples of the stream.
        stages: plans of the stream.
    """
    for left_out in _left_out(source, stages):
        level = logging.WARNING if left_out.share >= WORTH_A_WARNING else logging.INFO
        if len(left_out.found) and _log.isEnabledFor(level):
            _log.log(
                level, "%s (`reelweave report` shows them)", _reasons_sentence(left_out, source.plan_index)
            )


def _left_out(source: SampleSource, stages: CurriculumPlans) -> Iterator[_LeftOut]:
    """Yield what every stage with other buckets than those before leaves out."""
    drawn_N = drawn_mask(source)
    for stage, config in distinct_stages(stages):
        unassigned = stages.stage_assignment(stage).unassigned.among(drawn_N)
        yield _LeftOut(stages.given[stage], config, int(drawn_N.sum()), unassigned)


def distinct_stages(stages: CurriculumPlans) -> Iterator[tuple[int, BucketConfig]]:
    """Yield number and buckets of every stage with other buckets than those before."""
    seen_buckets: list[BucketConfig] = []
    for stage, config in enumerate(stages.buckets):
        if config not in seen_buckets:
            seen_buckets.append(config)
            yield stage, config


def words_of_stage(stage: int) -> str:
    """Return words for a stage of the curriculum; none for the first one."""
    return f" of stage {stage} (stream.curriculum)" if stage else ""


def drawn_mask(source: SampleSource) -> Flags:
    """Return True for the samples that the source draws; a blend may take parts of its datasets."""
    if not isinstance(source, Blend):
        return np.ones(len(source.plan_index), np.bool_)
    drawn_N = np.zeros(len(source.plan_index), np.bool_)
    for leaf in range(len(source.leaves)):
        drawn_N[source.rows(leaf)] = True
    return drawn_N


def _reasons_sentence(left_out: _LeftOut, index: PlanIndex) -> str:
    """Return samples and seconds by reason, and the changes that would take them in, in words."""
    rows_X, count = left_out.found.rows, len(left_out.found)
    second_X = _seconds(index, rows_X)
    return (
        f"no bucket{words_of_stage(left_out.stage)} takes {count:,} of {left_out.samples:,} samples"
        f" ({left_out.share:.2%}, {second_X.sum():,.0f} s), which are never trained on:"
        f" {_reasons(left_out.found, second_X)}. {_advice(index, rows_X, left_out.config)}"
    )


def _seconds(index: PlanIndex, rows_X: IndexArray) -> Floats:
    """Return the seconds of samples; 0 of images."""
    frames_X = index.frames[rows_X]
    return np.where(frames_X > 1, frames_X / np.maximum(index.fps[rows_X], 1e-6), 0.0).astype(np.float64)


def _reasons(unassigned: Unassigned, second_X: Floats) -> str:
    """Return samples and seconds by reason, most first; too few frames, of whatever number, are one reason."""
    count_U = np.bincount(unassigned.reason_of, minlength=len(unassigned.reasons))
    second_U = np.bincount(unassigned.reason_of, second_X, minlength=len(unassigned.reasons))
    tallies: dict[str, _Tally] = {}
    for reason, count, second in zip(unassigned.reasons, count_U.tolist(), second_U.tolist(), strict=True):
        if count:
            frames, too_few, limit = reason.rpartition(" frames, ")
            tally = tallies.setdefault(limit, _Tally())
            tally.frames += [int(frames)] if too_few else []
            tally.samples, tally.seconds = tally.samples + count, tally.seconds + second
    ordered = sorted(tallies.items(), key=lambda entry: -entry[1].samples)
    reasons = [tally.describe(limit) for limit, tally in ordered[:_MOST_REASONS]]
    more = [tally.samples for _, tally in ordered[_MOST_REASONS:]]
    return "; ".join([*reasons, *([f"{sum(more):,} for {len(more)} other reasons"] if more else [])])


def _advice(index: PlanIndex, rows_X: IndexArray, config: BucketConfig) -> str:
    taking_in = taking_in_rows(index, rows_X, config)
    if taking_in.together is None:
        return "No change of stream.buckets takes them in"
    each = [f"{change.words} ({change.takes_in:,})" for change in taking_in.changes if change.takes_in]
    together = " and ".join(taking_in.together.words)
    return (
        f"What takes them in (stream.buckets): {', or '.join(each) or together}; most: {together}"
        f" ({taking_in.together.takes_in:,})"
    )
