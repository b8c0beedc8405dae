"""Sums over the samples of a step on all ranks."""

import torch

from reelweave.train.distributed.world import World


class Accumulator:
    """Accumulator of named tensors over a step's microbatches, on the device and without synchronization.

    Every rank adds the same names in the same order.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, **tensors: torch.Tensor) -> None:
        """Add each tensor to the sum of its name."""
        for name, tensor in tensors.items():
            wide = tensor.detach().double()
            self._sums[name] = self._sums[name] + wide if name in self._sums else wide.clone()

    def over(self, world: World) -> dict[str, torch.Tensor]:
        """Return the sums over all ranks, float64, on the device; a collective."""
        world.sum_(list(self._sums.values()))
        return self._sums
