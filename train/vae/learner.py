"""One of the two that learn, tokenizer or discriminator: weights on every rank, gradients summed once a step."""

from collections.abc import Collection, Mapping

import torch
from torch import nn

from train.config.optimizer import OptimizerConfig
from train.distributed.world import World
from train.step.optimizer import build_optimizer, state_tensors


class Learner:
    """Weights, their gradients and their optimizer, the same on all ranks.

    Args:
        weights: by name.
        config: of the optimizer.

    Attributes:
        weights: by name.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], config: OptimizerConfig) -> None:
        self.weights = dict(weights)
        self._config = config
        self._optimizer = build_optimizer(config, self.weights)

    def begin(self, lr: float, resting: Collection[str] = ()) -> None:
        """Begins a step: gradients are zeros, so that all ranks have the same ones, whatever their clips use.

        Args:
            lr: learning rate.
            resting: names of weights that neither get a gradient nor change.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for name, weight in self.weights.items():
            rests = name in resting
            weight.requires_grad_(not rests)
            weight.grad = None if rests else torch.zeros_like(weight)

    def sum_gradients(self, world: World) -> None:
        """Sums gradients over the ranks."""
        world.sum_(self._gradients())

    def clip(self) -> float:
        """Scales gradients to the largest allowed norm; the norm before."""
        norm = torch.nn.utils.get_total_norm(self._gradients())
        torch.nn.utils.clip_grads_with_norm_(self.weights.values(), self._config.grad_clip, norm)
        return norm.item()

    def update(self) -> None:
        """Makes the optimizer's step; weights that rest are passed over, their moments too."""
        self._optimizer.step()

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Named WEIGHT.NAME; to be read and written in place."""
        return state_tensors(self._optimizer, self.weights)

    def _gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self.weights.values() if weight.grad is not None]
