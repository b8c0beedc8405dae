"""The training loop: a stream of microbatches in, checkpoints and numbers out."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from loader.batch import Batch, Microbatch, Pack
from loader.cost import Cost
from loader.errors import RunError, UsageError
from loader.recalibrate import recalibrated
from loader.storage import Storage, open_storage
from train.checkpoint import Checkpoints, CheckpointState
from train.checkpoint.pieces import Tensors
from train.checkpoint.saver import Notes
from train.config import TrainConfig
from train.interrupt import Interrupt, interrupts
from train.log import MetricLog
from train.metrics import StepMetrics
from train.models.bundle import Bundle
from train.objectives.flow import draw, interpolate, sample_losses
from train.optimizer import build_optimizer, state_tensors
from train.packed import packed_losses
from train.parallel.world import World, join
from train.resume import difference, seed_step
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
        checkpoint: URI of the last one.
        stopped: whether a signal ended the run before its last step.
    """

    steps: int
    first_10_mean: float
    last_10_mean: float
    samples_per_s: float
    checkpoint: str
    stopped: bool = False


class Trainer:
    """Trains a DiT with flow matching, alone or as one of torchrun's processes.

    A sample's loss is the mean squared error of its velocity; a step's loss is the mean over the samples of
    all ranks. Each microbatch is weighed by its share of the step and gradients are summed, so the update does not
    depend on how the samples lie on the ranks, nor on how many microbatches each rank has.

    Args:
        config: the run.
        stream: this rank's microbatches.
        out: folder of the run, on a file system that all ranks see.
        checkpoints: where they are kept, ``out/checkpoints`` unless given. When there is one, the run goes on
            from it, with any number of ranks.
    """

    def __init__(
        self, config: TrainConfig, stream: Stream, out: Path, checkpoints: Storage | None = None
    ) -> None:
        self.config = config
        self.stream = stream
        self.out = out
        self.checkpoints = checkpoints or open_storage(out / "checkpoints")

    def run(self) -> TrainResult:
        """Trains up to ``schedule.total_steps``, or until any rank gets one of `train.interrupt.SIGNALS`.

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
        bundle = Bundle(config).to(world.device)
        weights = bundle.trained()
        optimizer = build_optimizer(config.optimizer, weights)
        groups: dict[str, Tensors] = {"model": weights, "optimizer": state_tensors(optimizer, weights)}
        checkpoints = Checkpoints(self.checkpoints, config.checkpoint, world, groups)
        last = done = self._resume(checkpoints)
        world.broadcast_(list(weights.values()))
        self.out.mkdir(parents=True, exist_ok=True)
        with MetricLog(self.out, config.log, done, total_steps, writes=world.rank == 0) as log:
            count = sum(weight.numel() for weight in weights.values())
            log.say(
                f"training {count:,} weights on {world.size} x {world.device}, steps {done} to {total_steps}"
            )
            batches, clock = iter(self.stream), MicrobatchClock(world.device)
            nonfinite_steps = 0
            for step in range(done + 1, total_steps + 1):
                began = time.perf_counter()
                seed_step(config.seed, step, world.rank)
                lr = learning_rate(step - 1, config.optimizer, config.schedule)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.zero_grad(set_to_none=False)
                data_s, own = 0.0, _Own()
                for batch, waited_s in self._batches(batches, step):
                    with clock.measure(batch):
                        if isinstance(batch, Pack):
                            losses_B, tokens = packed_losses(bundle, config, batch, world.device)
                        else:
                            losses_B, tokens = self._sample_losses(bundle, batch, world.device)
                        (batch.weight * losses_B.mean()).backward()  # type: ignore[no-untyped-call]  # torch's own
                    data_s += waited_s
                    log.bad_samples(batch.bad)
                    own.add(batch, losses_B, tokens)
                world.sum_([weight.grad for weight in weights.values() if weight.grad is not None])
                notes = (float(interrupt.asked), *checkpoints.notes())
                loss, step_tokens, (asked, *told) = own.totals(world, notes)
                norm = torch.nn.utils.clip_grad_norm_(weights.values(), config.optimizer.grad_clip).item()

                finite = math.isfinite(loss) and math.isfinite(norm)
                if finite:
                    if config.denominator == "epoch":
                        own.spread_(weights.values())
                    optimizer.step()
                log.add(
                    StepMetrics(
                        step=step,
                        loss=loss if math.isfinite(loss) else None,
                        lr=lr,
                        grad_norm=norm if math.isfinite(norm) else None,
                        skipped=not finite,
                        step_s=time.perf_counter() - began,
                        data_s=data_s,
                        samples=own.step_samples,
                        tokens=step_tokens,
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
                checkpoints.heed(Notes(*told))
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
            first_10_mean=summary.first_mean,
            last_10_mean=summary.last_mean,
            samples_per_s=summary.samples_per_s,
            checkpoint=checkpoints.uri(last),
            stopped=stopped,
        )

    def _sample_losses(
        self, bundle: Bundle, batch: Microbatch, device: torch.device
    ) -> tuple[torch.Tensor, int]:
        """The loss of each sample, float32 [B], and the text and video tokens that went into them."""
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
        video_tokens = len(captions) * math.prod(bundle.dit.grid(clean_BCTHW.shape[2:]))
        return sample_losses(prediction_BCTHW, velocity_BCTHW), video_tokens + int(mask_BM.sum())

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

    def _resume(self, checkpoints: Checkpoints) -> int:
        """Puts everything back to the latest checkpoint; the steps done by then."""
        state = checkpoints.latest()
        if state is None:
            return 0
        if differs := difference(state.config, self.config):
            raise UsageError(
                f"{checkpoints.uri(state.step)} was made with another configuration: {differs}; "
                "resume with the old value, or train into another folder"
            )
        checkpoints.load_(state)
        self.stream.load_state_dict(state.stream)
        return state.step

    def _state(self, step: int) -> CheckpointState:
        config = self.config.model_dump(mode="json")
        return CheckpointState(step=step, stream=dict(self.stream.state_dict()), config=config)


class _Own:
    """This rank's microbatches of a step. Losses stay on the device until the step is over: to look is to wait."""

    def __init__(self) -> None:
        self._done: list[tuple[Batch, torch.Tensor, int]] = []

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

    def add(self, batch: Batch, losses_B: torch.Tensor, tokens: int) -> None:
        """Takes a microbatch that went through the model."""
        self._done.append((batch, losses_B.detach(), tokens))

    def totals(self, world: World, notes: Sequence[float]) -> tuple[float, int, list[float]]:
        """Loss, tokens and ``notes`` of all ranks; a microbatch of weight 0 repeats samples that count elsewhere.

        Raises:
            UsageError: the weights of the step's microbatches do not add up to 1.
        """
        loss = sum(batch.weight * losses_B.mean().item() for batch, losses_B, _ in self._done)
        weight = sum(batch.weight for batch, _, _ in self._done)
        tokens = sum(tokens for batch, _, tokens in self._done if batch.weight)
        totals = torch.tensor([loss, weight, tokens, *notes], dtype=torch.float64, device=world.device)
        world.sum_([totals])
        loss, weight, tokens, *notes = totals.tolist()
        if abs(weight - 1) > 1e-6:
            raise UsageError(
                f"the microbatch weights of a step add up to {weight:g} over {world.size} ranks, not to 1: "
                "open each rank's stream with its own rank and this world size"
            )
        return loss, int(tokens), notes

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
