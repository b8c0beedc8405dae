"""Optimizer steps of a run that has resumed, with what they measure, log and save."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import torch

from reelweave.loader.batch import NO_READS, Microbatch, Pack
from reelweave.loader.buckets.recalibrate import RecalibrateConfig, recalibrate
from reelweave.loader.errors import RunError
from reelweave.loader.text import pluralize
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.metrics import StepMetrics
from reelweave.train.loop.logs.rank_records import RankRecord
from reelweave.train.loop.logs.record import CheckpointRecord
from reelweave.train.loop.processes import Processes
from reelweave.train.loop.resume import DATASETS, ExternalFiles, seed_step
from reelweave.train.loop.task import TrainingTask
from reelweave.train.measure.flops import utilisation
from reelweave.train.measure.idle_watch import IdleWatch
from reelweave.train.measure.profiler import Profiler
from reelweave.train.measure.step_times import RankTimes
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.transfer import read
from reelweave.train.step.batches import (
    BatchStream,
    StepReader,
    StreamEndError,
    dataset_names_of,
    plan_keys_of,
)
from reelweave.train.step.message import StepMessage
from reelweave.train.step.step_losses import StepLosses

Config = TypeVar("Config", TrainConfig, VaeTrainConfig)

_ROUNDING = 1e-6
"""Error of sums of shares of a step's samples."""
_RANKS_PER_LINE = 128  # of ranks.jsonl, with one line each log.every_steps


class _Numbers(NamedTuple):
    """Numbers of a step behind its backward.

    Attributes:
        total: Sum of all ranks' messages.
        norms: Norms of the gradients, before `StepLosses.normalise_`.
        terms: Terms of the loss.
    """

    total: StepMessage
    norms: list[float]
    terms: dict[str, float]


class _Step(NamedTuple):
    """A finished step with its totals."""

    metrics: StepMetrics
    total: StepMessage
    losses: StepLosses


class Steps(Generic[Config]):
    """All steps of a run, on one rank."""

    def __init__(
        self,
        config: Config,
        stream: BatchStream,
        processes: Processes,
        task: TrainingTask,
        checkpoints: Checkpoints,
        log: RunLog,
        peak: float | None,
        outside: ExternalFiles = ExternalFiles(),  # noqa: B008 - a tuple
    ) -> None:
        self._config: Config = config
        self._stream, self._task = stream, task
        self._world, self._interrupt = processes.ranks.world, processes.interrupt
        self._checkpoints, self._log, self._peak, self._outside = checkpoints, log, peak, outside
        self._reader, self._clock, self._times = (
            StepReader(stream),
            StepClock(self._world),
            RankTimes(self._world),
        )
        self._idle = IdleWatch(self._world.size, _idle_remedies(config))
        self._nonfinite_steps = 0
        self._missing_by_step: list[float] = []  # shares of the samples of steps that lack any
        self._reads = NO_READS
        self._noted_checkpoint: int | None = None
        # Lines that name every rank come less often where there are many, so that their bytes per step are bounded.
        self._rank_steps = config.log.every_steps * math.ceil(self._world.size / _RANKS_PER_LINE)

    def run(self, done: int, profiler: Profiler) -> int:
        """Train from behind step ``done`` to the last one or a stop; return the last step, which is saved."""
        config, task, log = self._config, self._task, self._log
        total_steps = config.schedule.total_steps
        last, step = done, done
        for step in range(done + 1, total_steps + 1):
            profiler.before(step)
            try:
                outcome = self._train_step(step)
            except StreamEndError:
                self._save_before_end(step - 1, last)
                raise
            profiler.behind(step)
            # Numbers first, so that a run that ends at non-finite losses shows them.
            log.write(outcome.metrics)
            if idle := self._idle.add(outcome.metrics.times):
                log.say(f"step {step}: {idle}")
            self._stop_when_not_finite(outcome)
            task.after_step(step, log)
            if config.recalibrate and step % config.recalibrate.every_steps == 0:
                self._recalibrate(step, config.recalibrate)
            # A checkpoint written beside becomes visible once all ranks have their part.
            self._checkpoints.advance(outcome.total.checkpoint)
            self._note_checkpoint()
            # A stop that any rank was asked for reaches all with the step's numbers.
            ends = step == total_steps or outcome.total.stops > 0
            saves = ends or step % config.checkpoint.every_steps == 0
            if saves or step % self._rank_steps == 0:
                waits = self._times.take_waits()
                if self._world.size > 1:
                    log.write(RankRecord.of(step, waits))
            if saves:
                self._checkpoints.save(self._state(step), last=ends)
                self._note_checkpoint()
                last = step
            if ends:
                break
        self._report_missing(step - done, is_whole=last == total_steps)
        return last

    def _note_checkpoint(self) -> None:
        """Record the newest whole checkpoint, once."""
        step = self._checkpoints.published
        if step is not None and step != self._noted_checkpoint:
            self._noted_checkpoint = step
            self._log.write(CheckpointRecord(step, time.time()))

    def _save_before_end(self, step: int, saved: int) -> None:
        """Save behind the last step of a stream that has ended, if its plan ends on all ranks at once."""
        if step > saved and plan_keys_of(self._stream) is not None:
            self._checkpoints.save(self._state(step), last=True)
            self._note_checkpoint()
            self._log.say(f"saved behind step {step}, the last of the stream")

    def _report_missing(self, steps: int, is_whole: bool) -> None:
        """Say what the steps of this run lacked of their samples.

        Args:
            steps: Steps of this run.
            is_whole: Whether the run reached its last step, and was not asked to stop.

        Raises:
            RunError: A whole run had not one sample.
        """
        if not self._missing_by_step:
            return
        empty = sum(share > 1 - _ROUNDING for share in self._missing_by_step)
        self._log.say(
            f"{len(self._missing_by_step):,} of {steps:,} steps lacked samples that could not be read and that no other"
            f" replaced, {sum(self._missing_by_step) / steps:.2%} of all; {empty:,} steps had none at all and taught"
            f" nothing. bad_samples.jsonl names them"
        )
        if is_whole and empty == steps:
            raise RunError(
                f"nothing was trained: not one sample of {pluralize(steps, 'step')} could be read. bad_samples.jsonl in"
                " the folder of the run says why; mend the dataset, and train into another folder"
            )

    def _train_step(self, step: int) -> _Step:
        """Make one optimizer step of all ranks."""
        task, clock, config = self._task, self._clock, self._config
        # The same random numbers whenever this step is made, also after a resume.
        clock.begin()
        seed_step(config.seed, step, task.data.rank)
        lr, losses = task.begin(step), StepLosses(config.denominator)
        # Forward and backward of this rank's microbatches; gradients add up, weighted by samples.
        batches = self._reader.read_step(step, config.schedule.total_steps, clock)
        for batch in task.forward_backward(
            losses.note_batches(self._count_batches(batches)), step, losses, clock
        ):
            self._log.bad_samples(batch.bad)
        # Sum over the ranks, then read loss and norms: the one wait for the device.
        with clock.part("sync"):
            task.sum_gradients()
        norms, terms = task.norms(), task.terms()
        readout: _Numbers = self._exchange(losses, norms, terms or {})
        loss, work = losses.mean(readout.total.losses, self._world.size, task.data.size)
        norm = readout.norms[0] * losses.scale
        # All ranks have the same numbers, so all update or none does.
        with clock.part("optimizer"):
            finite = all(map(math.isfinite, (loss, norm, *readout.norms)))
            if finite:
                losses.normalise_(task.weights.values())
                task.clip([each * losses.scale for each in norms])
                losses.spread_(task.updated_weights())
                task.update(step)
        clock.pause()
        # Samples that could not be read are missing from the mean, and counted.
        missing = readout.total.losses.missing * task.data.size / self._world.size
        if missing > _ROUNDING:
            self._missing_by_step.append(missing)
        times = self._times.add(readout.total.clock)
        metrics = StepMetrics(
            step=step,
            loss=loss if math.isfinite(loss) else None,
            lr=lr,
            grad_norm=norm if math.isfinite(norm) else None,
            skipped=not finite,
            times=times,
            samples=round(losses.step_samples * (1 - missing)),
            tokens=work.tokens,
            flops=work.flops or None,
            read_retries=readout.total.reads.retries,
            cache_hits=readout.total.reads.cache_hits,
            cache_misses=readout.total.reads.cache_misses,
            mfu=utilisation(work.flops, times.step_s, self._peak) if self._peak else None,
            parts=None if terms is None else _finite(readout.terms),
        )
        return _Step(metrics, readout.total, losses)

    def _count_batches(self, batches: Iterator[Microbatch | Pack]) -> Iterator[Microbatch | Pack]:
        self._reads = NO_READS
        for batch in batches:
            self._reads = self._reads.plus(batch.reads)
            yield batch

    def _exchange(
        self, losses: StepLosses, norms: Sequence[torch.Tensor], terms: Mapping[str, torch.Tensor]
    ) -> _Numbers:
        """Read a step's numbers from the device, and sum over the ranks all that they know of it by now."""
        means: list[torch.Tensor] = losses.means
        # One process waits for its device here and nowhere else in a step.
        floats = iter(read([*means, *norms, *terms.values()]))
        read_means, read_norms = list(islice(floats, len(means))), list(islice(floats, len(norms)))
        # Behind the read, when the device has reached all of the clock's marks.
        spent = self._clock.read()
        message = StepMessage(
            losses=losses.sums(read_means),
            stops=float(self._interrupt.asked),
            checkpoint=self._checkpoints.progress(),
            reads=self._reads,
            clock=self._times.own(spent),
        )
        return _Numbers(message.sum_ranks(self._world), read_norms, dict(zip(terms, floats, strict=True)))

    def _stop_when_not_finite(self, outcome: _Step) -> None:
        self._nonfinite_steps = self._nonfinite_steps + 1 if outcome.metrics.skipped else 0
        if self._nonfinite_steps == self._config.max_nonfinite_steps:
            raise RunError(
                outcome.losses.nonfinite(outcome.metrics.step, self._nonfinite_steps, self._world.rank)
            )

    def _recalibrate(self, step: int, config: RecalibrateConfig) -> None:
        """Plan further steps with measured costs, where they differ from the cost so far."""
        fit = recalibrate(self._stream.cost, self._clock.take(), config)
        self._log.say(f"step {step}: {fit.reason}{self._times.waits_clause()}")
        if fit.changed and self._stream.recalibrate(fit.cost):
            self._reader = StepReader(self._stream)

    def _state(self, step: int) -> CheckpointState:
        config = self._config.model_dump(mode="json")
        plans = plan_keys_of(self._stream)
        if plans is not None:
            plans = {**plans, DATASETS: dataset_names_of(self._stream)}
        stream = dict(self._stream.state_dict())
        base, parts, ancestors = self._outside
        return CheckpointState(
            step=step,
            stream=stream,
            config=config,
            plans=plans,
            base=base,
            frozen=dict(parts),
            ancestors=list(ancestors),
        )


def _finite(terms: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in terms.items() if math.isfinite(value)}


def _idle_remedies(config: TrainConfig | VaeTrainConfig) -> list[str]:
    """Return the keys that make the steps of ranks more even, the cheapest first."""
    remedies = ["more stream.microbatches give a plan more to balance"]
    if config.recalibrate is None:
        remedies.append("train.recalibrate.every_steps=200 plans by measured costs")
    parallel = config.parallel
    if isinstance(config, TrainConfig) and not (parallel.work_stealing or parallel.against_work_stealing):
        remedies.append("train.parallel.work_stealing.share=0.12 lets free ranks help late ones")
    return remedies
