"""All numbers of a run's page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reelweave.pipelines.report.run.bad_samples import BadSamples, read_bad_samples
from reelweave.pipelines.report.run.checkpoints import CheckpointList, read_checkpoints
from reelweave.pipelines.report.run.configuration import (
    FILES,
    Configuration,
    KeyDifference,
    differences,
    read_configuration,
)
from reelweave.pipelines.report.run.losses import AllLosses, read_losses
from reelweave.pipelines.report.run.metrics import Steps, read_steps
from reelweave.pipelines.report.run.rank_waits import RankTable, read_rank_waits
from reelweave.pipelines.report.run.samples import SampleSheet, read_samples
from reelweave.pipelines.report.run.scores import EvaluationScores, read_scores
from reelweave.pipelines.report.run.timelines import Timelines, read_timelines
from reelweave.pipelines.report.run.warnings import warnings
from reelweave.train.loop.logs.record import METRICS
from reelweave.train.loop.stages.record import read_ancestors


@dataclass(frozen=True)
class RunNumbers:
    """Numbers of one run on the page.

    Attributes:
        name: name of the run on the page, unique among those shown.
        folder: its folder.
        total_steps: steps that its configuration asks for; None if unknown.
        left_s: seconds that the remaining steps take at the recent pace; None if unknown or done.
        memory_limit_gib: limit of a GPU's memory; None if unknown.
        steps: metrics of its steps.
        losses: losses by bucket and time, and held-out ones.
        ranks: waits and memory of every rank.
        checkpoints: its checkpoints.
        bad_samples: samples that were replaced.
        samples: validation videos.
        scores: scores of sampled videos by checkpoint.
        timelines: planned and executed cascades.
        configuration: its configuration.
        ancestors: what it began with, newest first, as `reelweave.train.checkpoint.state.Ancestor`.
        warnings: observations that deserve a look, in words.
    """

    name: str
    folder: str
    total_steps: int | None
    left_s: float | None
    memory_limit_gib: float | None
    steps: Steps
    losses: AllLosses
    ranks: RankTable
    checkpoints: CheckpointList
    bad_samples: BadSamples
    samples: SampleSheet
    scores: EvaluationScores
    timelines: Timelines
    configuration: Configuration
    ancestors: list[dict[str, Any]]
    warnings: list[str]


@dataclass(frozen=True)
class RunsNumbers:
    """Numbers of a page of several runs.

    Attributes:
        runs: its runs.
        differences: keys of their configurations that differ.
    """

    runs: list[RunNumbers]
    differences: list[KeyDifference]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def is_run(folder: Path) -> bool:
    """Return whether a folder holds what a training run leaves."""
    return any((folder / name).is_file() for name in (METRICS, *FILES))


def read_runs(folders: list[Path], memory_gib: float | None = None) -> RunsNumbers:
    """Read the numbers of runs.

    Args:
        folders: folders of the runs.
        memory_gib: memory of a GPU, by which to judge the peak; default: the limit of `train.cascade`, if set.
    """
    names = distinct_names([folder.absolute().resolve().parts for folder in folders])
    runs = [_read_run(folder, name, memory_gib) for folder, name in zip(folders, names, strict=True)]
    return RunsNumbers(runs, differences([run.configuration for run in runs]))


def _read_run(folder: Path, name: str, memory_gib: float | None) -> RunNumbers:
    config = read_configuration(folder)
    steps, losses = read_steps(folder), read_losses(folder)
    total = config.total_steps
    limit = memory_gib or config.value("train.cascade.memory_gib")
    limit = float(limit) if isinstance(limit, int | float) and limit > 0 else None
    checkpoints, bad = read_checkpoints(folder, config), read_bad_samples(folder)
    samples, timelines, ranks = read_samples(folder), read_timelines(folder), read_rank_waits(folder)
    return RunNumbers(
        name=name,
        folder=str(folder),
        total_steps=total,
        left_s=_seconds_left(steps, total),
        memory_limit_gib=limit,
        steps=steps,
        losses=losses,
        ranks=ranks,
        checkpoints=checkpoints,
        bad_samples=bad,
        samples=samples,
        scores=read_scores(folder),
        timelines=timelines,
        configuration=config,
        ancestors=[ancestor.model_dump() for ancestor in read_ancestors(folder)],
        warnings=warnings(config, steps, losses, ranks, checkpoints, bad, samples, limit),
    )


def _seconds_left(steps: Steps, total: int | None) -> float | None:
    recent = steps.recent
    if total is None or steps.last is None or steps.last >= total or recent.step_s is None:
        return None
    return (total - steps.last) * (recent.step_s + (recent.pause_s or 0.0))


def distinct_names(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the shortest ends of paths, given in their parts, that tell all apart."""
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(of[-length:]) for of in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(of)} ({index})" for index, of in enumerate(paths, 1)]
