"""The loop that fine-tunes a tokenizer: a stream of clips in, checkpoints, numbers and pictures out."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import torch

from loader.batch import Microbatch
from loader.errors import RunError, UsageError
from loader.storage import Storage, open_storage
from train.checkpoint import Checkpoints, CheckpointState
from train.checkpoint.saver import Notes
from train.config.vae import VaeTrainConfig
from train.distributed.world import World, join
from train.logs.log import MetricLog
from train.logs.metrics import StepMetrics
from train.logs.scalars import open_scalars
from train.loop.interrupt import Interrupt, interrupts
from train.loop.resume import resume, seed_step
from train.loop.trainer import TrainResult
from train.measure.recordings import Recordings
from train.measure.step_times import RankTimes
from train.measure.timings import StepClock
from train.step.batches import Stream, batches_of_step
from train.step.ema import Ema
from train.step.step_losses import StepLosses
from train.vae.look import Look
from train.vae.players import Players
from train.vae.tally import Tally

INITIALISATION = "initialisation.json"
PICTURES = "reconstructions"


class VaeTrainer:
    """Trains a tokenizer, and with a GAN term its discriminator, alone or as one of torchrun's processes.

    A step's loss is the mean over the clips of all ranks. Each microbatch is weighed by its share of the step and
    gradients are summed, so the update does not depend on how clips lie on the ranks. All state is on every rank.

    Args:
        config: the run.
        stream: this rank's microbatches.
        out: folder of the run, on a file system that all ranks see.
        look: clips that are not trained on, to look at now and then.
        checkpoints: where they are kept, ``out/checkpoints`` unless given. When there is one, the run goes on
            from it, with any number of ranks.
    """

    def __init__(
        self,
        config: VaeTrainConfig,
        stream: Stream,
        out: Path,
        look: Look | None = None,
        checkpoints: Storage | None = None,
    ) -> None:
        self.config = config
        self.stream = stream
        self.out = out
        self.look = look
        self.checkpoints = checkpoints or open_storage(out / "checkpoints")

    def run(self) -> TrainResult:
        """Trains up to ``schedule.total_steps``, or until any rank gets one of `train.loop.interrupt.SIGNALS`.

        Raises:
            UsageError: the VAE or a term cannot be had, clips do not fit it, or the checkpoint in ``out`` belongs to
                another configuration.
            RunError: the stream ended early, a checkpoint is damaged or cannot be written, a rank was lost, or
                losses stay non-finite.
        """
        with interrupts() as interrupt, join(self.config.device, self.config.lost_after_s) as world:
            gpus = [world.device] if world.device.type == "cuda" else []
            with torch.random.fork_rng(devices=gpus):
                return self._run(world, interrupt)

    def _run(self, world: World, interrupt: Interrupt) -> TrainResult:
        config, total_steps = self.config, self.config.schedule.total_steps
        players = Players(config, world.device)
        weights = players.learner.weights
        ema = Ema(config.ema, weights)
        groups = players.state() | ({"ema": ema.tensors} if ema.tensors else {})
        checkpoints = Checkpoints(self.checkpoints, config.checkpoint, world, groups)
        last = done = resume(checkpoints, self.stream, config)
        players.share(world)
        self.out.mkdir(parents=True, exist_ok=True)
        writes = world.rank == 0
        scalars = open_scalars(self.out, config, done, writes)
        with (
            MetricLog(self.out, config.log, done, total_steps, writes, scalars) as log,
            Recordings(self.out, config.log, world, done) as recordings,
        ):
            self._introduce(players, world, log, done)
            if self.look and done == 0:
                self._see(self.look, players, world, log, step=0)
            batches, clock, rank_times = iter(self.stream), StepClock(world), RankTimes(world)
            nonfinite_steps = 0
            for step in range(done + 1, total_steps + 1):
                recordings.before(step)
                clock.begin()
                seed_step(config.seed, step, world.rank)
                lr = players.begin(step)
                own, tally = StepLosses("step"), Tally()
                for batch in batches_of_step(batches, step, total_steps, clock):
                    assert isinstance(batch, Microbatch), "the configuration refuses packs"
                    players.learn(batch, step, own, tally, clock)
                    log.bad_samples(batch.bad)
                with clock.part("sync"):
                    players.sum_gradients(world)
                    sums = tally.over(world)
                # To read the clock is to wait for the device, as the look at the losses would be.
                notes = (float(interrupt.asked), *checkpoints.notes(), *rank_times.told(clock.read()))
                mean_loss, work, (asked, saved, failed, *told) = own.totals(world, world.size, notes)
                times = rank_times.heard(told)
                with clock.part("optimizer"):
                    norms = players.clip()
                    finite = all(map(math.isfinite, (mean_loss, *norms)))
                    if finite:
                        players.update(sums, step)
                        ema.update_(weights.values(), step)
                clock.pause()
                recordings.behind(step)
                parts = {name: total.item() for name, total in sums.items() if not total.ndim}
                log.add(
                    StepMetrics(
                        step=step,
                        loss=mean_loss if math.isfinite(mean_loss) else None,
                        lr=lr,
                        grad_norm=norms[0] if math.isfinite(norms[0]) else None,
                        skipped=not finite,
                        times=times,
                        samples=own.step_samples,
                        tokens=work.tokens,
                        parts={name: value for name, value in parts.items() if math.isfinite(value)},
                    )
                )
                nonfinite_steps = 0 if finite else nonfinite_steps + 1
                if nonfinite_steps == config.max_nonfinite_steps:
                    raise RunError(own.nonfinite(step, nonfinite_steps, world.rank))
                checkpoints.heed(Notes(saved, failed))
                ends = step == total_steps or asked > 0
                if self.look and (step % self.look.every_steps == 0 or step == total_steps):
                    self._see(self.look, players, world, log, step)
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

    def _introduce(self, players: Players, world: World, log: MetricLog, done: int) -> None:
        """Says what is trained, and where its weights come from."""
        weights, found = players.learner.weights, players.vae.initialisation
        count = sum(weight.numel() for weight in weights.values())
        total_steps = self.config.schedule.total_steps
        log.say(
            f"training {count:,} weights of {players.vae.family} on {world.size} x {world.device},"
            f" steps {done} to {total_steps}"
        )
        if found.new:
            log.say(
                f"{len(found.taken)} tensors begin as published, {len(found.new)} are new,"
                f" {len(found.left_over)} were left over: {self.out / INITIALISATION}"
            )
        if world.rank == 0:
            _write_whole(self.out / INITIALISATION, json.dumps(asdict(found), indent=1).encode())

    def _see(self, look: Look, players: Players, world: World, log: MetricLog, step: int) -> None:
        """Looks at held-out clips, and records what comes of it; a collective."""
        narrow = self.config.dtype == "bfloat16"
        seen = look.see(players.vae, players.objective.perceptual, world, narrow)
        if not seen.measured:
            raise UsageError("held_out.dataset has no clip that fits stream.buckets; take another one")
        log.add_reconstruction(step, {name: asdict(values) for name, values in seen.measured.items()})
        told = ", ".join(f"{name} {values.mean:.4g}" for name, values in seen.measured.items())
        first = seen.measured["psnr"]
        log.say(f"step {step}: held-out {told}; first frames' psnr {first.first:.4g}")
        if world.rank == 0 and seen.picture:
            _write_whole(self.out / PICTURES / f"step-{step:06d}.png", seen.picture)

    def _state(self, step: int) -> CheckpointState:
        config = self.config.model_dump(mode="json")
        return CheckpointState(step=step, stream=dict(self.stream.state_dict()), config=config)


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(data)
    aside.replace(path)
