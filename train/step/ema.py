"""Exponential moving average (EMA) of the weights, which samples better than the last weights."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from reelweave.train.config.optimizer import EmaConfig


class Ema:
    """EMA in float32, whatever the dtype of the weights.

    Each average is placed like its weight: for sharded weights (DTensor) a rank averages its own shards,
    without communication.

    Args:
        config: decay of the average; None: no EMA.
        weights: initial weights.

    Attributes:
        tensors: averages, by the names of the weights.
    """

    def __init__(self, config: EmaConfig | None, weights: Mapping[str, torch.Tensor]) -> None:
        self._config = config
        averaged = weights.items() if config else ()
        self.tensors = {name: weight.detach().to(torch.float32, copy=True) for name, weight in averaged}

    @torch.no_grad()
    def update_(self, weights: Iterable[torch.Tensor], step: int) -> None:
        """Update the averages after a step, counted from 1; weights in their initial order."""
        if self._config is None:
            return
        averages = list(self.tensors.values())
        now = [weight.detach().float() for weight in weights]
        torch._foreach_lerp_(averages, now, 1 - decay(self._config, step))

    @contextmanager
    def swap(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Exchange weights and averages for the body, in place; both return to the bit.

        Tensors are exchanged one after the other, so that one of this rank's shards at a time is held twice. Weights
        of another dtype than float32 wait in the host's memory.
        """
        wide = {
            name: weight.detach().to("cpu", copy=True)
            for name, weight in weights.items()
            if name in self.tensors and weight.dtype != self.tensors[name].dtype
        }
        self._exchange_(weights, {})
        try:
            yield
        finally:
            self._exchange_(weights, wide)

    @torch.no_grad()
    def _exchange_(self, weights: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> None:
        for name, average in self.tensors.items():
            weight = weights[name]
            if weight.dtype != average.dtype:
                weight.copy_(saved.get(name, average))
                continue
            before = weight.detach().clone()
            weight.copy_(average)
            average.copy_(before)


def decay(config: EmaConfig, step: int) -> float:
    """Return the share of the average that stays at a step, counted from 1.

    It rises to ``config.decay``, so that the initial weights decay fast: (1 + step) / (10 + step), as in
    TensorFlow and diffusers.
    """
    return min(config.decay, (1 + step) / (10 + step))
