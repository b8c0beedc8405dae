"""Trainable network, VAE or discriminator: replicated weights whose gradients are summed once per step."""

from collections.abc import Collection

import torch
from torch import nn

from reelweave.train.config.optimizer import OptimizerConfig
from reelweave.train.distributed.world import World
from reelweave.train.step.optimizer import build_optimizer, state_tensors
from reelweave.train.step.weight_decay import decayed_weights


class Trainable:
    """Weights, gradients and optimizer of one network, the same on all ranks.

    Args:
        network: network, whose parameters that need a gradient are trained.
        config: configuration of the optimizer.

    Attributes:
        weights: weights by name.
    """

    def __init__(self, network: nn.Module, config: OptimizerConfig) -> None:
        self.weights = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        self._config = config
        self._optimizer = build_optimizer(config, self.weights, decayed_weights(network))

    def begin(self, lr: float, resting: Collection[str] = ()) -> None:
        """Begin a step with zero gradients, so that all ranks have the same ones whatever their clips use.

        Args:
            lr: learning rate.
            resting: names of frozen weights, without gradient and update.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for name, weight in self.weights.items():
            rests = name in resting
            weight.requires_grad_(not rests)
            weight.grad = None if rests else torch.zeros_like(weight)

    def sum_gradients(self, world: World) -> None:
        """Sum gradients over the ranks."""
        world.sum_(self._gradients())

    def norm(self) -> torch.Tensor:
        """Return the norm of the gradients, a scalar on the device."""
        return torch.nn.utils.get_total_norm(self._gradients())

    def clip(self, norm: torch.Tensor) -> None:
        """Clip gradients of a norm to the largest norm."""
        torch.nn.utils.clip_grads_with_norm_(self.weights.values(), self._config.grad_clip, norm)

    def update(self) -> None:
        """Run the optimizer's step; skips frozen weights and their moments."""
        self._optimizer.step()

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return the optimizer's state, named WEIGHT.NAME, to be read and written in place."""
        return state_tensors(self._optimizer, self.weights)

    def _gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self.weights.values() if weight.grad is not None]
