"""An average of the weights over the steps, which samples better than the last ones."""

from collections.abc import Iterable, Mapping

import torch

from train.config.optimizer import EmaConfig


class Ema:
    """An exponential moving average, in float32 whatever the type of the weights.

    Each tensor lies where its weight lies: of weights that are sharded over ranks (DTensor) a rank averages its own
    shards, with no communication.

    Args:
        config: how long the average remembers; None: there is none.
        weights: where it starts.

    Attributes:
        tensors: the averages, by the names of the weights.
    """

    def __init__(self, config: EmaConfig | None, weights: Mapping[str, torch.Tensor]) -> None:
        self._config = config
        kept = weights.items() if config else ()
        self.tensors = {name: weight.detach().to(torch.float32, copy=True) for name, weight in kept}

    @torch.no_grad()
    def update_(self, weights: Iterable[torch.Tensor], step: int) -> None:
        """Takes in the weights after a step, counted from 1; in the order they were given first."""
        if self._config is None:
            return
        averages = list(self.tensors.values())
        now = [weight.detach().float() for weight in weights]
        torch._foreach_lerp_(averages, now, 1 - decay(self._config, step))


def decay(config: EmaConfig, step: int) -> float:
    """The share of the average that stays at a step, counted from 1.

    It rises to ``config.decay``, so that the initial weights are soon forgotten: (1 + step) / (10 + step), as in
    TensorFlow's and diffusers' averages.
    """
    return min(config.decay, (1 + step) / (10 + step))
