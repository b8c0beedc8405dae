"""Findings about a run that a reader should look into, in words."""

from collections.abc import Iterator, Sequence

from reelweave.pipelines.report.run.bad_samples import BadSamples
from reelweave.pipelines.report.run.checkpoints import CheckpointList
from reelweave.pipelines.report.run.configuration import Configuration
from reelweave.pipelines.report.run.losses import AllLosses
from reelweave.pipelines.report.run.metrics import RankWait, Steps
from reelweave.pipelines.report.run.rank_waits import RankTable
from reelweave.pipelines.report.run.samples import SampleSheet

WAIT_SHARE, DATA_SHARE, PAUSE_SHARE = 0.05, 0.1, 0.1
"""Shares of the time from which waiting, data and pauses are named."""
SLOW_SHARE, SLOW_FACTOR = 0.2, 1.5
"""Share of all waiting from which a rank is slow, if it also causes so many times as much as the mean rank."""
FALL = 0.1
"""Fall of the rate from its usual value that is named."""
NEAR_LIMIT = 0.05
"""Distance to the limit of memory, as a share of it, that is named."""
_HELD_OUT_RISE = 0.02


def warnings(
    config: Configuration,
    steps: Steps,
    losses: AllLosses,
    ranks: RankTable,
    checkpoints: CheckpointList,
    bad: BadSamples,
    samples: SampleSheet,
    limit_gib: float | None,
) -> list[str]:
    """Return sentences on what is wrong or could be better, the gravest first."""
    return [
        *_unreadable(config, steps, losses, ranks, samples),
        *_not_finite(steps),
        *_memory(steps, limit_gib),
        *_waiting(steps),
        *_speed(steps),
        *_held_out(losses),
        *_files(steps, checkpoints, bad, samples),
    ]


def slow_ranks(waits: Sequence[RankWait]) -> list[RankWait]:
    """Return the ranks that cause clearly more than their share of all waiting.

    Args:
        waits: ranks that came last in any step.
    """
    all_s = sum(wait.waited_s for wait in waits)
    min_wait_s = min(1.0, max(SLOW_SHARE, SLOW_FACTOR / max(1, len(waits)))) * all_s
    return [wait for wait in waits if wait.waited_s >= min_wait_s > 0]


def _not_finite(steps: Steps) -> Iterator[str]:
    if steps.skipped:
        yield (
            f"The loss or gradient was not finite in {_steps(steps.skipped)} of {steps.recorded:,}, the last of them"
            f" {steps.last_skipped:,}: these changed no weights."
        )


def _memory(steps: Steps, limit_gib: float | None) -> Iterator[str]:
    peak = steps.peak_gib
    if peak is not None and limit_gib is not None and peak >= (1 - NEAR_LIMIT) * limit_gib:
        yield (
            f"Memory came to {peak:.1f} GiB of {limit_gib:g}: less than {NEAR_LIMIT:.0%} are free, so that a"
            " slightly larger step may fail. Lower stream.buckets.memory_tokens, or set activation_checkpointing."
        )


def _waiting(steps: Steps) -> Iterator[str]:
    share = steps.whole.wait_share
    if share is None or share < WAIT_SHARE or not steps.waits:
        return
    slow = slow_ranks(steps.waits)
    for wait in slow:
        yield (
            f"Rank {wait.rank} is slow: ranks waited for it {wait.share:.1%} of the time. It came last in"
            f" {_steps(wait.steps)} of {steps.recorded:,}. Look at its machine, disk and network."
        )
    if not slow:
        yield (
            f"Ranks waited {share:.1%} of the time, for many different ranks, so the steps are uneven."
            " stream.policy=balanced, more stream.microbatches, train.recalibrate or train.parallel.work_stealing help."
        )


def _speed(steps: Steps) -> Iterator[str]:
    usual, now = steps.usual_flops_per_s, steps.recent.flops_per_s
    if usual is not None and now is not None and now < (1 - FALL) * usual:
        what = "MFU" if steps.recent.mfu is not None else "The rate of operations"
        yield (
            f"{what} fell: the last {_steps(steps.recent.steps)} ran at {now / usual:.0%} of the usual"
            f" {usual / 1e12:,.3g} TFLOPS."
        )
    step_s, data = steps.whole.step_s, steps.whole.parts.get("data")
    if step_s and data is not None and data >= DATA_SHARE * step_s:
        yield (
            f"Steps waited {data / step_s:.0%} of their time for data: the stream is slower than the devices."
            " More stream.workers, more stream.prefetch or a cache help."
        )
    pause = steps.whole.pause_s
    if step_s and pause is not None and pause >= PAUSE_SHARE * (step_s + pause):
        yield (
            f"{pause / (step_s + pause):.0%} of the time went to pauses between steps: held-out clips, validation"
            " videos or checkpoints come too often."
        )


def _held_out(losses: AllLosses) -> Iterator[str]:
    best = losses.held_out_best
    if best is not None and best.best > 0 and best.last > (1 + _HELD_OUT_RISE) * best.best:
        yield (
            f"The held-out loss was lowest at step {best.best_step:,} ({best.best:.4g}) and is"
            f" {best.last / best.best - 1:.0%} higher at step {best.last_step:,}."
        )


def _files(steps: Steps, checkpoints: CheckpointList, bad: BadSamples, samples: SampleSheet) -> Iterator[str]:
    if bad.count:
        yield f"{bad.count:,} samples could not be used, and others of their buckets replaced them."
    if samples.failed:
        yield f"{samples.failed:,} validation videos failed; the sheet says why."
    unfinished = [checkpoint.step for checkpoint in checkpoints.found if not checkpoint.complete]
    if unfinished:
        yield (
            f"The checkpoint of step {', '.join(f'{step:,}' for step in unfinished[-3:])} is not complete: it is being"
            " written, or its run was killed."
        )
    if steps.last is not None and not checkpoints.found and not checkpoints.elsewhere:
        yield "There is no checkpoint yet: a run that stops now begins anew."


def _unreadable(
    config: Configuration, steps: Steps, losses: AllLosses, ranks: RankTable, samples: SampleSheet
) -> Iterator[str]:
    if config.problem:
        yield f"The configuration cannot be read: {config.problem}."
    if steps.last is None:
        yield "No step is recorded yet."
    wrong = {
        "metrics.jsonl": steps.unreadable,
        "losses.jsonl": losses.unreadable,
        "ranks.jsonl": ranks.unreadable,
    }
    for name, count in wrong.items():
        if count:
            lines = f"{count:,} lines" if count > 1 else "1 line"
            yield f"No records of steps in order, and left out: {lines} of {name}."
    if samples.unreadable:
        listed = ", ".join(f"{step:,}" for step in samples.unreadable)
        yield f"The validation videos of step {listed} have no readable validation.json, and were left out."


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"
