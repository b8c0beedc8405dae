"""GAN term of a run: discriminator, its optimizer, and both networks' adversarial losses."""

import torch
from torch.func import functional_call

from reelweave.train.config.vae import GanConfig
from reelweave.train.models.precision.float32 import at_least_float32
from reelweave.train.vae.accumulator import Accumulator
from reelweave.train.vae.discriminator import PatchDiscriminator
from reelweave.train.vae.losses.gan import adaptive_weight, gradient_at, lecam, r1, to_fool, to_tell_apart
from reelweave.train.vae.reconstruction import Reconstruction
from reelweave.train.vae.trainable import Trainable

LECAM_DECAY = 0.99
"""Decay of LeCam's moving averages; 0.99 in the authors' code."""


class GanTerm:
    """Discriminator with its optimizer and the moving averages of both adversarial losses.

    Both networks train on the same reconstructions, each against the other's weights from before the step. Sums
    over a whole step determine the next step's weights, so that no term depends on how samples are distributed
    over ranks.

    Args:
        config: configuration of the GAN term.
        seed: seed of the discriminator's weights.
        device: compute device.

    Attributes:
        config: configuration of the term.
        discriminator: patch discriminator.
        trainable: its weights and optimizer.
    """

    def __init__(self, config: GanConfig, seed: int, device: torch.device) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.discriminator = PatchDiscriminator(config.channels, config.layers).to(device)
        self.trainable = Trainable(self.discriminator, config.optimizer)
        self._ratio = torch.zeros((), device=device)
        self._usual_2 = torch.zeros(2, device=device)

    def trains_discriminator(self, step: int) -> bool:
        """Return True if a step, counted from 1, trains the discriminator."""
        return step >= self.config.first_step

    def counts(self, step: int) -> bool:
        """Return True if a step, counted from 1, includes the tokenizer's adversarial loss."""
        return step >= self.config.start_step

    def generator_loss(self, made_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return the tokenizer's unweighted adversarial loss, [B]; the discriminator gets no gradient."""
        weights = {name: weight.detach() for name, weight in self.trainable.weights.items()}
        made_BP = at_least_float32(functional_call(self.discriminator, weights, (made_BCTHW,)))
        return to_fool(made_BP, self.config.loss)

    def weight(self) -> torch.Tensor:
        """Return the weight of the tokenizer's adversarial loss, a scalar; 0 with ``adaptive`` until a ratio exists."""
        return self.config.weight * (self._ratio if self.config.adaptive else torch.ones_like(self._ratio))

    def measure(
        self,
        share: float,
        compared_B: torch.Tensor,
        fooled_B: torch.Tensor,
        layer: torch.Tensor,
        accumulator: Accumulator,
    ) -> None:
        """Add the two gradients whose ratio is the next step's adaptive weight.

        Args:
            share: share of the step's samples.
            compared_B: loss of the reconstruction's terms.
            fooled_B: adversarial loss; see `generator_loss`.
            layer: the decoder's last layer.
            accumulator: sums over the step.
        """
        if self.config.adaptive:
            accumulator.add(
                pull=gradient_at(share * compared_B.mean(), layer),
                push=gradient_at(share * fooled_B.mean(), layer),
            )

    def discriminator_loss(
        self, share: float, reconstruction: Reconstruction, accumulator: Accumulator
    ) -> torch.Tensor:
        """Return the discriminator's weighted loss on clips and their reconstructions.

        Args:
            share: share of the step's samples.
            reconstruction: clips and reconstructions.
            accumulator: sums over the step.
        """
        config = self.config
        real_BP, made_BP = (
            at_least_float32(self.discriminator(x_BCTHW))
            for x_BCTHW in (reconstruction.video, reconstruction.reconstructed.detach())
        )
        loss_B = told_B = to_tell_apart(real_BP, made_BP, config.loss)
        if config.r1:
            video_BCTHW = reconstruction.video.detach().requires_grad_()
            # Second-order gradients need more precision than bfloat16.
            with torch.autocast(video_BCTHW.device.type, enabled=False):
                loss_B = loss_B + config.r1 * r1(self.discriminator(video_BCTHW), video_BCTHW)
        if config.lecam:
            loss_B = loss_B + config.lecam * lecam(real_BP, made_BP, self._usual_2)
        verdicts_2 = torch.stack([real_BP.mean(), made_BP.mean()])
        accumulator.add(discriminator=share * told_B.mean(), verdicts=share * verdicts_2)
        return share * loss_B.mean()

    def update_averages(self, sums: dict[str, torch.Tensor]) -> None:
        """Update the moving averages by the sums of a whole step."""
        if "pull" in sums:
            self._ratio.copy_(adaptive_weight(sums["pull"], sums["push"]))
        if "verdicts" in sums:
            self._usual_2.lerp_(sums["verdicts"].to(self._usual_2), 1 - LECAM_DECAY)

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the tensors of a checkpoint by group and name, to be read and written in place."""
        return {
            "discriminator": {name: weight.detach() for name, weight in self.trainable.weights.items()},
            "discriminator_optimizer": self.trainable.optimizer_state(),
            "adversary": {"ratio": self._ratio, "usual": self._usual_2},
        }
