"""The training loop: a stream of microbatches in, checkpoints and numbers out."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import ValidationError

from loader.batch import Batch, Microbatch, Pack
from loader.cost import Cost
from loader.errors import RunError, UsageError
from loader.recalibrate import recalibrated
from train import checkpoint
from train.config import TrainConfig
from train.flops import utilisation
from train.log import MetricLog
from train.metrics import StepMetrics
from train.models.bundle import Bundle
from train.models.denoiser import Work
from train.objectives.flow import draw, interpolate, sample_losses
from train.optimizer import build_optimizer, state_tensors
from train.packed import packed_losses
from train.parallel.world import World, join
from train.peak import peak_flops_per_s
from train.schedule import learning_rate
from train.timings import MicrobatchClock


class Stream(Protocol):
    """Where a rank's microbatches come from, one or more per optimizer step (`loader.stream.VideoStream`)."""

    def __iter__(self) -> Iterator[Microbatch | Pack]:
        """Goes on from the state."""

    def state_dict(self) -> Mapping[str, Any]:
        """JSON values, the same on every rank, from which a stream goes on behind the last microbatch."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets the state."""

    @property
    def cost(self) -> Cost:
        """What microbatches are planned with."""

    def recalibrate(self, cost: Cost) -> bool:
        """Plans what a new iterator yields with another cost; False where that is not possible now."""


@dataclass(frozen=True)
class TrainResult:
    """What a run came to.

    Attributes:
        steps: optimizer steps done, those before a resume included.
        first_10_mean: mean loss of the first ten steps.
        last_10_mean: mean loss of the last ten steps.
        samples_per_s: over all ranks and steps.
        checkpoint: folder of the last one.
    """

    steps: int
    first_10_mean: float
    last_10_mean: float
    samples_per_s: float
    checkpoint: Path


class Trainer:
    """Trains a DiT with flow matching, alone or as one of torchrun's processes.

    A sample's loss is the mean squared error of its velocity; a step's loss is the mean over the samples of
    all ranks. Each microbatch is weighed by its share of the step and gradients are summed, so the update does not
    depend on how the samples lie on the ranks, nor on how many microbatches each rank has.

    Args:
        config: the run.
        stream: this rank's microbatches.
        out: folder of the run, on a file system that all ranks see. When it holds a checkpoint, the run
            goes on from there.
    """

    def __init__(self, config: TrainConfig, stream: Stream, out: Path) -> None:
        self.config = config
        self.stream = stream
        self.out = out

    def run(self) -> TrainResult:
        """Trains up to ``schedule.total_steps``.

        Raises:
            UsageError: the checkpoint in ``out`` belongs to another configuration, or the samples' shapes do
                not fit the model.
            RunError: the stream ended early, a checkpoint is damaged, or losses stay non-finite.
        """
        with join(self.config.device) as world:
            return self._run(world)

    def _run(self, world: World) -> TrainResult:
        config, total_steps = self.config, self.config.schedule.total_steps
        bundle = Bundle(config).to(world.device)
        weights = bundle.trained()
        optimizer = build_optimizer(config.optimizer, weights)
        done = self._resume(weights, optimizer)
        world.broadcast_(list(weights.values()))
        self.out.mkdir(parents=True, exist_ok=True)
        peak = peak_flops_per_s(config.log.peak_tflops, world)
        with MetricLog(self.out, config.log, done, total_steps, writes=world.rank == 0) as log:
            count = sum(weight.numel() for weight in weights.values())
            log.say(
                f"training {count:,} weights on {world.size} x {world.device}, steps {done} to {total_steps}"
            )
            batches, clock = iter(self.stream), MicrobatchClock(world.device)
            nonfinite_steps = 0
            for step in range(done + 1, total_steps + 1):
                began = time.perf_counter()
                lr = learning_rate(step - 1, config.optimizer, config.schedule)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.zero_grad(set_to_none=False)
                data_s, own = 0.0, _Own()
                for batch, waited_s in self._batches(batches, step):
                    with clock.measure(batch):
                        if isinstance(batch, Pack):
                            losses_B, work = packed_losses(bundle, config, batch, world.device)
                        else:
                            losses_B, work = self._sample_losses(bundle, batch, world.device)
                        (batch.weight * losses_B.mean()).backward()  # type: ignore[no-untyped-call]  # torch's own
                    data_s += waited_s
                    log.bad_samples(batch.bad)
                    own.add(batch, losses_B, work)
                world.sum_([weight.grad for weight in weights.values() if weight.grad is not None])
                loss, step_work = own.totals(world)
                norm = torch.nn.utils.clip_grad_norm_(weights.values(), config.optimizer.grad_clip).item()

                finite = math.isfinite(loss) and math.isfinite(norm)
                if finite:
                    if config.denominator == "epoch":
                        own.spread_(weights.values())
                    optimizer.step()
                step_s = time.perf_counter() - began
                log.add(
                    StepMetrics(
                        step=step,
                        loss=loss if math.isfinite(loss) else None,
                        lr=lr,
                        grad_norm=norm if math.isfinite(norm) else None,
                        skipped=not finite,
                        step_s=step_s,
                        data_s=data_s,
                        samples=own.step_samples,
                        tokens=step_work.tokens,
                        flops=step_work.flops,
                        mfu=utilisation(step_work.flops, step_s, peak) if peak else None,
                    )
                )
                nonfinite_steps = 0 if finite else nonfinite_steps + 1
                if nonfinite_steps == config.max_nonfinite_steps:
                    raise RunError(_nonfinite(step, nonfinite_steps, own, world.rank))
                if config.recalibrate and step % config.recalibrate.every_steps == 0:
                    found = recalibrated(self.stream.cost, clock.take(world), config.recalibrate)
                    log.say(f"step {step}: {found.reason}")
                    if found.changed and self.stream.recalibrate(found.cost):
                        batches = iter(self.stream)
                if world.rank == 0 and (step % config.checkpoint.every_steps == 0 or step == total_steps):
                    self._save(step, weights, optimizer)
            world.barrier()
            summary = log.summary
        folder = checkpoint.latest(self.out)
        if folder is None:
            raise RunError(
                f"{self.out} shows no checkpoint on rank {world.rank}; all ranks must see that folder"
            )
        steps = max(done, total_steps)
        return TrainResult(steps, summary.first_mean, summary.last_mean, summary.samples_per_s, folder)

    def _sample_losses(
        self, bundle: Bundle, batch: Microbatch, device: torch.device
    ) -> tuple[torch.Tensor, Work]:
        """The loss of each sample, float32 [B], and what the samples came to."""
        config = self.config
        with torch.no_grad():
            clean_BCTHW = bundle.tokenizer.encode(batch.video_BCTHW.to(device))
        drawn = draw(config.objective, config.seed, batch.keys, batch.passes, clean_BCTHW.shape[1:])
        t_B, noise_BCTHW = drawn.times.to(device), drawn.noise.to(device)
        noisy_BCTHW, velocity_BCTHW = interpolate(clean_BCTHW, noise_BCTHW, t_B)
        captions = ["" if drop else text for drop, text in zip(drawn.dropped, batch.captions, strict=True)]
        with torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            context_BMD, mask_BM = bundle.text(captions)
            prediction_BCTHW = bundle.dit(noisy_BCTHW, t_B, context_BMD, mask_BM)
        work = bundle.dit.work([clean_BCTHW.shape[2:]] * len(captions), mask_BM)
        return sample_losses(prediction_BCTHW, velocity_BCTHW), work

    def _batches(
        self, batches: Iterator[Microbatch | Pack], step: int
    ) -> Iterator[tuple[Microbatch | Pack, float]]:
        """This rank's part of a step, and the seconds that each of it was waited for."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                total_steps = self.config.schedule.total_steps
                raise RunError(f"the stream ended before step {step} of schedule.total_steps={total_steps}")
            yield batch, time.perf_counter() - began
            if batch.ends_step:
                return

    def _resume(self, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
        """Puts everything back to the latest checkpoint in ``out``; the steps done by then."""
        folder = checkpoint.latest(self.out)
        if folder is None:
            return 0
        state = checkpoint.read_state(folder)
        saved, own = _bound(_completed(state.config)), _bound(self.config.model_dump(mode="json"))
        if difference := checkpoint.first_difference(saved, own):
            raise UsageError(
                f"{folder} was made with another configuration: {difference}; "
                "resume with the old value, or train into another folder"
            )
        checkpoint.load_(folder / checkpoint.MODEL, weights)
        checkpoint.load_(folder / checkpoint.OPTIMIZER, state_tensors(optimizer, weights))
        self.stream.load_state_dict(state.stream)
        return state.step

    def _save(
        self, step: int, weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        state = checkpoint.CheckpointState(
            step=step, stream=dict(self.stream.state_dict()), config=self.config.model_dump(mode="json")
        )
        tensors = state_tensors(optimizer, weights)
        checkpoint.save(self.out, state, weights, tensors, self.config.checkpoint.keep_last)


def _completed(config: dict[str, Any]) -> dict[str, Any]:
    """A saved configuration with the keys that came later at their defaults; as it is where it fits no more."""
    try:
        return TrainConfig.model_validate(config).model_dump(mode="json")
    except ValidationError:
        return config


def _bound(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that a resumed run shares with the run before."""
    schedule = {name: value for name, value in config["schedule"].items() if name != "total_steps"}
    kept = {name: value for name, value in config.items() if name not in ("log", "checkpoint")}
    return {**kept, "schedule": schedule}


class _Own:
    """This rank's microbatches of a step. Losses stay on the device until the step is over: to look is to wait."""

    def __init__(self) -> None:
        self._done: list[tuple[Batch, torch.Tensor, Work]] = []

    @property
    def step_samples(self) -> int:
        """Samples of the step on all ranks."""
        return self._done[0][0].step_samples

    def spread_(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Makes gradients that were means over the step's samples sums over them, in units of a mean step."""
        batch = self._done[0][0]
        for weight in weights:
            if weight.grad is not None:
                weight.grad.mul_(batch.step_samples / batch.mean_samples)

    def add(self, batch: Batch, losses_B: torch.Tensor, work: Work) -> None:
        """Takes a microbatch that went through the model."""
        self._done.append((batch, losses_B.detach(), work))

    def totals(self, world: World) -> tuple[float, Work]:
        """Loss and work of the step on all ranks; a microbatch of weight 0 repeats samples that count elsewhere.

        Raises:
            UsageError: the weights of the step's microbatches do not add up to 1.
        """
        loss = sum(batch.weight * losses_B.mean().item() for batch, losses_B, _ in self._done)
        weight = sum(batch.weight for batch, _, _ in self._done)
        done = [work for batch, _, work in self._done if batch.weight]
        tokens, flops = sum(work.tokens for work in done), sum(work.flops for work in done)
        totals = torch.tensor([loss, weight, tokens, flops], dtype=torch.float64, device=world.device)
        world.sum_([totals])
        loss, weight, tokens, flops = totals.tolist()
        if abs(weight - 1) > 1e-6:
            raise UsageError(
                f"the microbatch weights of a step add up to {weight:g} over {world.size} ranks, not to 1: "
                "open each rank's stream with its own rank and this world size"
            )
        return loss, Work(int(tokens), int(flops))

    def suspects(self) -> list[str]:
        """Keys of the samples whose loss is not finite; of all, where every loss is."""
        keys = [key for batch, _, _ in self._done for key in batch.keys]
        finite = [good for _, losses_B, _ in self._done for good in losses_B.isfinite().tolist()]
        return [key for key, good in zip(keys, finite, strict=True) if not good] or keys


def _nonfinite(step: int, count: int, own: _Own, rank: int) -> str:
    return (
        f"loss or gradient was not finite in {count} steps in a row, up to step {step} "
        f"(samples on rank {rank}: {', '.join(own.suspects()[:8])}); "
        "lower optimizer.lr, or look at these clips"
    )
