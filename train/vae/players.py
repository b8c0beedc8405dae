"""The tokenizer and its discriminator: what a microbatch teaches both, and what both do behind a step."""

from dataclasses import dataclass

import torch

from loader.batch import Microbatch
from train.config.vae import VaeTrainConfig
from train.distributed.world import World
from train.measure.timings import StepClock
from train.models.denoiser import Work
from train.step.learning_rate import learning_rate
from train.step.step_losses import StepLosses
from train.vae.adversary import Adversary
from train.vae.learner import Learner
from train.vae.network import VideoVae
from train.vae.objective import Objective, reconstruct
from train.vae.statistics import LatentStatistics
from train.vae.tally import Tally


@dataclass(frozen=True, eq=False)
class VaeLosses:
    """What B clips came to (`train.step.step_losses.SampleLosses`).

    Attributes:
        each: weighted sum of the terms, [B].
        work: latent places for tokens; operations are not counted.
        video_tokens: nobody asks for them.
    """

    each: torch.Tensor
    work: Work
    video_tokens: tuple[int, ...] = ()


class Players:
    """All that a run trains and remembers, the same on every rank.

    Args:
        config: of the run.
        device: where everything goes.

    Attributes:
        vae: the tokenizer.
        objective: the terms of its loss but for GAN's.
        learner: its trained weights.
        adversary: its discriminator; None without a GAN term.

    Raises:
        UsageError: the VAE or a term cannot be had.
    """

    def __init__(self, config: VaeTrainConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self.vae = VideoVae(config.model, config.seed).to(device).train()
        self.objective = Objective(config.losses, self.vae).to(device)
        self.learner = Learner(self.vae.trained(), config.optimizer)
        gan = config.losses.gan
        self.adversary = Adversary(gan, config.seed, device) if gan else None
        self._statistics = LatentStatistics(self.vae.channels, device)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """What a checkpoint holds, by group and name; to be read and written in place."""
        own = {
            "model": {name: weight.detach() for name, weight in self.learner.weights.items()},
            "optimizer": self.learner.optimizer_state(),
            "latents": self._statistics.tensors,
        }
        return own | (self.adversary.state() if self.adversary else {})

    def share(self, world: World) -> None:
        """Makes all ranks start from the same weights."""
        for learner in self._learners():
            world.broadcast_(list(learner.weights.values()))

    def begin(self, step: int) -> float:
        """Begins a step, counted from 1: gradients are zeros; the tokenizer's learning rate."""
        config = self._config
        lr = learning_rate(step - 1, config.optimizer, config.schedule)
        rest = self.vae.initialisation.taken if step <= config.model.new_only_steps else ()
        self.learner.begin(lr, frozenset(rest))
        if self.adversary:
            optimizer = self.adversary.config.optimizer
            self.adversary.learner.begin(learning_rate(step - 1, optimizer, config.schedule))
        return lr

    def learn(self, batch: Microbatch, step: int, losses: StepLosses, tally: Tally, clock: StepClock) -> None:
        """Adds the gradients of a microbatch to those of both.

        Args:
            batch: clips or pictures of one shape.
            step: counted from 1.
            losses: of the step.
            tally: of the step: each term, unweighted, and what is remembered.
            clock: is told what this rank is at.
        """
        share, adversary = batch.weight, self.adversary
        with clock.part("forward"), self._autocast():
            found = reconstruct(self.vae, batch, self._device, self._config.seed)
            terms = self.objective.terms(found, step)
            each_B = self.objective.whole(terms)
            if adversary and adversary.counts(step):
                fooled_B = adversary.fooled(found.made)
                adversary.measure(share, self.objective.compared(terms), fooled_B, self.vae.last_layer, tally)
                each_B = each_B + adversary.weight() * fooled_B
                terms = terms | {"gan": fooled_B}
        with clock.part("backward"):
            _backward(losses.add(batch, VaeLosses(each_B, Work(found.latents, 0))))
        if adversary and adversary.learns(step):
            with clock.part("forward"), self._autocast():
                told_apart = adversary.told_apart(share, found, tally)
            with clock.part("backward"):
                _backward(told_apart)
        tally.add(**{name: share * term_B.mean() for name, term_B in terms.items()})
        self._statistics.note(share, found, tally)

    def sum_gradients(self, world: World) -> None:
        """Sums the gradients of both over the ranks."""
        for learner in self._learners():
            learner.sum_gradients(world)

    def clip(self) -> tuple[float, ...]:
        """Scales the gradients of both to their largest norms; the norms before, the tokenizer's first."""
        return tuple(learner.clip() for learner in self._learners())

    def update(self, sums: dict[str, torch.Tensor], step: int) -> None:
        """Makes both optimizers' steps, and remembers of the step what later ones need.

        Args:
            sums: of the step's tally, over all ranks.
            step: counted from 1.
        """
        for learner in self._learners():
            learner.update()
        self._statistics.remember(sums, step)
        if self.adversary:
            self.adversary.remember(sums)

    def _learners(self) -> list[Learner]:
        return [self.learner, *([self.adversary.learner] if self.adversary else [])]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._config.dtype == "bfloat16")


def _backward(scalar: torch.Tensor) -> None:
    scalar.backward()  # type: ignore[no-untyped-call]  # torch's own
