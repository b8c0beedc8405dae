"""A VAE and its discriminator in training: losses of a microbatch, both optimizers, evaluation."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.pieces import Tensors
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.record import ReconstructionRecord
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.denoiser import ComputeTotals
from reelweave.train.step.ema import Ema
from reelweave.train.step.learning_rate import learning_rate
from reelweave.train.step.step_losses import StepLosses
from reelweave.train.vae.accumulator import Accumulator
from reelweave.train.vae.evaluation import Evaluation
from reelweave.train.vae.gan_term import GanTerm
from reelweave.train.vae.network import VideoVae
from reelweave.train.vae.reconstruction import ReconstructionLoss, reconstruct
from reelweave.train.vae.statistics import LatentStatistics
from reelweave.train.vae.trainable import Trainable

INITIALISATION = "initialisation.json"
PICTURES = "reconstructions"


@dataclass(frozen=True, eq=False)
class VaeLosses:
    """Losses of B clips (`reelweave.train.step.step_losses.SampleLosses`).

    Attributes:
        each: Weighted sum of the terms, [B].
        work: Number of latent positions; operations are not counted.
        video_tokens: Empty: every clip counts alike.
    """

    each: torch.Tensor
    work: ComputeTotals
    video_tokens: tuple[int, ...] = ()


class VaeTask:
    """`TrainingTask` of a VAE, and with a GAN term of its discriminator; the same on every rank.

    Args:
        config: The run.
        world: All ranks, each with samples of its own.
        out: Folder of the run.
        look: Clips to evaluate on.

    Attributes:
        vae: The VAE.
        weights: Its trained weights.
        data: All ranks.

    Raises:
        UsageError: The VAE or a term cannot be had.
    """

    def __init__(self, config: VaeTrainConfig, world: World, out: Path, look: Evaluation | None) -> None:
        device = world.device
        self._config, self._world, self._out, self._look = config, world, out, look
        self.data = world
        self.vae = VideoVae(config.model, config.seed).to(device).train()
        self._objective = ReconstructionLoss(config.losses, self.vae).to(device)
        self._trainable = Trainable(self.vae.vae, config.optimizer)
        self.weights = self._trainable.weights
        gan = config.losses.gan
        self._gan_term = GanTerm(gan, config.seed, device) if gan else None
        self._trainables = [self._trainable, *([self._gan_term.trainable] if self._gan_term else [])]
        self._statistics = LatentStatistics(self.vae.channels, device)
        self._ema = Ema(config.ema, self.weights)
        self._accumulator = Accumulator()
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def description(self) -> str:
        return f"{sum(weight.numel() for weight in self.weights.values()):,} weights of {self.vae.family}"

    def state(self) -> Mapping[str, Tensors]:
        tensors: dict[str, Tensors] = {
            "model": {name: weight.detach() for name, weight in self.weights.items()},
            "optimizer": self._trainable.optimizer_state(),
            "latents": self._statistics.tensors,
        }
        gan_term = self._gan_term.state() if self._gan_term else {}
        return tensors | gan_term | ({"ema": self._ema.tensors} if self._ema.tensors else {})

    def start(self, done: int, log: RunLog) -> None:
        """Give all ranks the same weights; report how they were initialised; evaluate them before the first step."""
        for trainable in self._trainables:
            self._world.broadcast_(list(trainable.weights.values()))
        initialisation = self.vae.initialisation
        if initialisation.new:
            log.say(
                f"{len(initialisation.taken)} tensors begin as published, {len(initialisation.new)} are new,"
                f" {len(initialisation.left_over)} were left over: {self._out / INITIALISATION}"
            )
        if self._world.rank == 0:
            with whole_file(self._out / INITIALISATION) as aside:
                aside.write_text(json.dumps(asdict(initialisation), indent=1), encoding="utf-8")
        if done == 0:
            self._evaluate(0, log)

    def begin(self, step: int) -> float:
        """Clear the gradients and sums of both; return the VAE's learning rate."""
        config = self._config
        self._accumulator, self._sums = Accumulator(), {}
        lr = learning_rate(step - 1, config.optimizer, config.schedule)
        rest = self.vae.initialisation.taken if step <= config.model.new_only_steps else ()
        self._trainable.begin(lr, frozenset(rest))
        if self._gan_term:
            optimizer = self._gan_term.config.optimizer
            self._gan_term.trainable.begin(learning_rate(step - 1, optimizer, config.schedule))
        return lr

    def forward_backward(
        self, batches: Iterable[Microbatch | Pack], step: int, losses: StepLosses, clock: StepClock
    ) -> Iterator[Microbatch | Pack]:
        """Add the gradients of the microbatches to those of both."""
        for batch in batches:
            assert isinstance(batch, Microbatch), "the configuration refuses packs"
            self._learn(batch, step, losses, clock)
            yield batch

    def _learn(self, batch: Microbatch, step: int, losses: StepLosses, clock: StepClock) -> None:
        share, gan_term, accumulator = batch.share, self._gan_term, self._accumulator
        with clock.part("forward"), self._autocast():
            reconstruction = reconstruct(self.vae, batch, self._world.device, self._config.seed)
            terms = self._objective.terms(reconstruction, step)
            each_B = self._objective.whole(terms)
            if gan_term and gan_term.counts(step):
                fooled_B = gan_term.generator_loss(reconstruction.reconstructed)
                compared_B = self._objective.compare(terms)
                gan_term.measure(share, compared_B, fooled_B, self.vae.last_layer, accumulator)
                each_B = each_B + gan_term.weight() * fooled_B
                terms = terms | {"gan": fooled_B}
        with clock.part("backward"):
            _backward(losses.add(batch, VaeLosses(each_B, ComputeTotals(reconstruction.latents, 0))))
        if gan_term and gan_term.trains_discriminator(step):
            with clock.part("forward"), self._autocast():
                discriminator_loss = gan_term.discriminator_loss(share, reconstruction, accumulator)
            with clock.part("backward"):
                _backward(discriminator_loss)
        accumulator.add(**{name: share * term_B.mean() for name, term_B in terms.items()})
        self._statistics.note(share, reconstruction, accumulator)

    def updated_weights(self) -> Iterable[nn.Parameter]:
        """Return the weights of the tokenizer and of the discriminator."""
        return [weight for trainable in self._trainables for weight in trainable.weights.values()]

    def sum_gradients(self) -> None:
        """Sum the gradients of both, and each term, over the ranks."""
        for trainable in self._trainables:
            trainable.sum_gradients(self._world)
        self._sums = self._accumulator.over(self._world)

    def norms(self) -> tuple[torch.Tensor, ...]:
        """Return the norm of the gradients of each; the VAE's norm comes first."""
        return tuple(trainable.norm() for trainable in self._trainables)

    def clip(self, norms: Sequence[torch.Tensor]) -> None:
        """Limit the norm of the gradients of each."""
        for trainable, norm in zip(self._trainables, norms, strict=True):
            trainable.clip(norm)

    def update(self, step: int) -> None:
        """Update both, the averages, and the sums of the step that later ones need."""
        for trainable in self._trainables:
            trainable.update()
        self._statistics.update_averages(self._sums, step)
        if self._gan_term:
            self._gan_term.update_averages(self._sums)
        self._ema.update_(self.weights.values(), step)

    def terms(self) -> Mapping[str, torch.Tensor]:
        """Return the mean of each term, unweighted, over the step's samples."""
        return {name: total for name, total in self._sums.items() if not total.ndim}

    def after_step(self, step: int, log: RunLog) -> None:
        """Evaluate as often as configured, and behind the last step."""
        last = self._config.schedule.total_steps
        if self._look and (step % self._look.every_steps == 0 or step == last):
            self._evaluate(step, log)

    def _evaluate(self, step: int, log: RunLog) -> None:
        """Reconstruct held-out clips, and record measures and pictures; a collective."""
        if self._look is None:
            return
        narrow = self._config.dtype == "bfloat16"
        evaluation = self._look.see(self.vae, self._objective.perceptual, self._world, narrow)
        if not evaluation.measured:
            raise UsageError("held_out.dataset has no clip that fits stream.buckets; take another one")
        measured = {name: asdict(values) for name, values in evaluation.measured.items()}
        log.write(ReconstructionRecord(step, measured))
        text = ", ".join(f"{name} {values.mean:.4g}" for name, values in evaluation.measured.items())
        first = evaluation.measured["psnr"]
        log.say(f"step {step}: held-out {text}; first frames' psnr {first.first:.4g}")
        if self._world.rank == 0 and evaluation.picture:
            with whole_file(self._out / PICTURES / f"step-{step:06d}.png") as aside:
                aside.write_bytes(evaluation.picture)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self._world.device.type, torch.bfloat16, enabled=self._config.dtype == "bfloat16"
        )


def _backward(scalar: torch.Tensor) -> None:
    scalar.backward()  # type: ignore[no-untyped-call]  # torch's own
