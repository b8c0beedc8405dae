"""The training loop: a stream of microbatches in, checkpoints and numbers out."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from loader.buckets.recalibrate import recalibrated
from loader.errors import RunError
from loader.storage import Storage, open_storage
from train.cascade.training.start import run_by_cascades
from train.checkpoint import Checkpoints, CheckpointState
from train.checkpoint.saver import Notes
from train.config.run import TrainConfig
from train.distributed.world import World, join
from train.logs.breakdown import LossRows
from train.logs.log import MetricLog
from train.logs.metrics import StepMetrics
from train.logs.scalars import open_scalars
from train.loop.held_out import HeldOut
from train.loop.interrupt import Interrupt, interrupts
from train.loop.resume import resume, seed_step
from train.measure.flops import utilisation
from train.measure.peak_flops import peak_flops_per_s
from train.measure.recordings import Recordings
from train.measure.step_times import RankTimes
from train.measure.timings import StepClock
from train.models.encoders.stored import Stored
from train.parallel.layout import lay_out
from train.parallel.mesh import DATA
from train.step.batches import Stream, batches_of_step
from train.step.ema import Ema
from train.step.learning_rate import learning_rate
from train.step.step_losses import StepLosses


@dataclass(frozen=True)
class TrainResult:
    """What a run came to.

    Attributes:
        steps: optimizer steps done, those before a resume included.
        window: steps that either loss is the mean of: ten, or half of a shorter run; 0 where no step was done.
        first_loss: mean loss of the first steps, those before a resume included; None where no step was done.
        last_loss: mean loss of the last steps.
        samples_per_s: over all ranks and steps.
        checkpoint: URI of the last one.
        stopped: whether a signal ended the run before its last step.
    """

    steps: int
    window: int
    first_loss: float | None
    last_loss: float | None
    samples_per_s: float
    checkpoint: str
    stopped: bool = False


class Trainer:
    """Trains a DiT with one of the objectives, alone or as one of torchrun's processes.

    A sample's loss is the weighted mean squared error of its prediction; a step's loss is the mean over the samples
    of all ranks. Each microbatch is weighed by its share of the step and gradients are summed, so the update does not
    depend on how the samples lie on the ranks, nor on how many microbatches each rank has.

    Args:
        config: the run.
        stream: this rank's microbatches.
        out: folder of the run, on a file system that all ranks see.
        held_out: clips that are not trained on, to look at now and then.
        checkpoints: where they are kept, ``out/checkpoints`` unless given. When there is one, the run goes on
            from it, with any number of ranks.
        stored: encoders that need not be loaded, since all streams hold what they would give.
    """

    def __init__(
        self,
        config: TrainConfig,
        stream: Stream,
        out: Path,
        held_out: HeldOut | None = None,
        checkpoints: Storage | None = None,
        stored: Stored | None = None,
    ) -> None:
        self.config = config
        self.stream = stream
        self.out = out
        self.held_out = held_out
        self.checkpoints = checkpoints or open_storage(out / "checkpoints")
        self.stored = stored

    def run(self) -> TrainResult:
        """Trains up to ``schedule.total_steps``, or until any rank gets one of `train.loop.interrupt.SIGNALS`.

        Raises:
            UsageError: the checkpoint in ``out`` belongs to another configuration, or the samples' shapes do
                not fit the model.
            RunError: the stream ended early, a checkpoint is damaged or cannot be written, a rank was lost, or
                losses stay non-finite.
        """
        with interrupts() as interrupt, join(self.config.device, self.config.lost_after_s) as world:
            gpus = [world.device] if world.device.type == "cuda" else []
            with torch.random.fork_rng(devices=gpus):
                return self._run(world, interrupt)

    def _run(self, world: World, interrupt: Interrupt) -> TrainResult:
        config, total_steps = self.config, self.config.schedule.total_steps
        layout = lay_out(config, world, self.stored)
        cascades = run_by_cascades(layout, config) if config.parallel.schedule == "cascade" else None
        bundle, weights, data = layout.bundle, layout.weights, layout.ranks.along(*DATA)
        ema = Ema(config.ema, weights)
        groups = {"model": layout.placed(weights), "optimizer": layout.optimizer_state()}
        if ema.tensors:
            groups["ema"] = layout.placed(ema.tensors)
        checkpoints = Checkpoints(self.checkpoints, config.checkpoint, world, groups)
        last = done = resume(checkpoints, self.stream, config)
        layout.share()
        if cascades is not None:
            cascades.foresee(self.stream)
        self.out.mkdir(parents=True, exist_ok=True)
        peak = peak_flops_per_s(config.log.peak_tflops, world)
        writes = world.rank == 0
        scalars = open_scalars(self.out, config, done, writes)
        with (
            MetricLog(self.out, config.log, done, total_steps, writes, scalars) as log,
            Recordings(self.out, config.log, world, done) as recordings,
        ):
            log.say(
                f"training {layout.count:,} weights on {world.size} x {world.device}, steps {done} to {total_steps}"
            )
            batches, clock, rank_times = iter(self.stream), StepClock(world), RankTimes(world)
            rows, nonfinite_steps = LossRows(), 0
            for step in range(done + 1, total_steps + 1):
                recordings.before(step)
                clock.begin()
                seed_step(config.seed, step, data.rank)
                lr = learning_rate(step - 1, config.optimizer, config.schedule)
                for group in layout.optimizer.param_groups:
                    group["lr"] = lr
                layout.zero_gradients()
                own = StepLosses(config.denominator)
                for batch, found in layout.passes(
                    own.seen(batches_of_step(batches, step, total_steps, clock)), own.add, clock
                ):
                    rows.add(batch, found)
                    log.bad_samples(batch.bad)
                with clock.part("sync"):
                    layout.sum_gradients()
                # To read the clock is to wait for the device, as the look at the losses would be.
                notes = (float(interrupt.asked), *checkpoints.notes(), *rank_times.told(clock.read()))
                mean_loss, step_work, (asked, saved, failed, *told) = own.totals(world, data.size, notes)
                times = rank_times.heard(told)
                with clock.part("optimizer"):
                    own.normalise_(weights.values())
                    norm = layout.clip(config.optimizer.grad_clip)
                    finite = math.isfinite(mean_loss) and math.isfinite(norm)
                    if finite:
                        own.spread_(weights.values())
                        layout.update()
                        ema.update_(weights.values(), step)
                clock.pause()
                recordings.behind(step)
                log.add(
                    StepMetrics(
                        step=step,
                        loss=mean_loss if math.isfinite(mean_loss) else None,
                        lr=lr,
                        grad_norm=norm if math.isfinite(norm) else None,
                        skipped=not finite,
                        times=times,
                        samples=own.step_samples,
                        tokens=step_work.tokens,
                        flops=step_work.flops,
                        mfu=utilisation(step_work.flops, times.step_s, peak) if peak else None,
                    )
                )
                if cascades is not None and (line := cascades.shown(step, self.out)):
                    log.say(line)
                nonfinite_steps = 0 if finite else nonfinite_steps + 1
                if nonfinite_steps == config.max_nonfinite_steps:
                    raise RunError(own.nonfinite(step, nonfinite_steps, world.rank))
                if step % config.log.every_steps == 0:
                    log.add_losses(step, "train", rows.take(data))
                if self.held_out and step % self.held_out.every_steps == 0:
                    looked = self.held_out.losses(bundle, config, data, layout.keep_up, layout.errors)
                    log.add_losses(step, "held_out", looked)
                if config.recalibrate and step % config.recalibrate.every_steps == 0:
                    fit = recalibrated(self.stream.cost, clock.take(), config.recalibrate)
                    log.say(f"step {step}: {fit.reason}{rank_times.waited()}")
                    if fit.changed and self.stream.recalibrate(fit.cost):
                        batches = iter(self.stream)
                checkpoints.heed(Notes(saved, failed))
                ends = step == total_steps or asked > 0
                if ends or step % config.checkpoint.every_steps == 0:
                    checkpoints.save(self._state(step), last=ends)
                    last = step
                if ends:
                    break
            summary = log.summary
            if stopped := last < total_steps:
                log.say(f"asked to stop: saved behind step {last}; the same command goes on from there")
        return TrainResult(
            steps=last,
            window=summary.window,
            first_loss=summary.first_loss,
            last_loss=summary.last_loss,
            samples_per_s=summary.samples_per_s,
            checkpoint=checkpoints.uri(last),
            stopped=stopped,
        )

    def _state(self, step: int) -> CheckpointState:
        config = self.config.model_dump(mode="json")
        return CheckpointState(step=step, stream=dict(self.stream.state_dict()), config=config)
