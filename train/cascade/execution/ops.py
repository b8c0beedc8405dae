"""Interface between the executor and the model and data of a step."""

import math
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple, Protocol

import torch

from reelweave.train.cascade.problem import Cascade, Module
from reelweave.train.parallel.context.context import ContextParallel


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor in transit, known to all ranks in advance.

    Attributes:
        shape: tensor shape.
        dtype: tensor dtype.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class CascadeOps(Protocol):
    """Computation of a step's cascades; one object per rank, and all agree except in `source`."""

    def owner(self, sample: int) -> int:
        """Return the rank that has read a sample."""

    def input_specs(self, cascade: Cascade) -> Sequence[TensorSpec]:
        """Return the inputs of a text or VAE cascade, read by the sample's owner, such as the pixels of each clip.

        There are as many as outputs, or none.
        """

    def output_specs(self, cascade: Cascade) -> Sequence[TensorSpec]:
        """Return the outputs of a module for the DiT, such as the latents of each clip; none if the DiT makes them.

        If the plan has no such cascade, they are stored, and `source` returns them on the owner.
        """

    def source(self, cascade: Cascade) -> Sequence[torch.Tensor]:
        """Return the owner's tensors on the CPU: inputs of the cascade, or its stored outputs if the plan lacks it.

        Called on the owner alone.
        """

    def make(
        self, cascade: Cascade, part_indices: Sequence[int], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Run this rank's share of a text or VAE cascade.

        Args:
            cascade: sample and module, at any degree.
            part_indices: indices of the parts that this rank makes; may be empty.
            inputs: inputs of these parts, on the device; empty if the cascade needs none.

        Returns:
            The outputs of these parts, on the device.
        """

    def train(
        self,
        sample: int,
        module_outputs: MutableMapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        """Run forward and backward of the DiT on this rank's tokens of a sample.

        Accumulates unscaled partial gradients in the weights; their sum over all ranks is the step's gradient.

        Args:
            sample: sample number.
            module_outputs: outputs of the modules, on the device; the callee pops them, so that they are freed early.
            context: context parallelism over the sample's tokens; None: this rank has all of them.
            first: True on the one rank of the group that reports the loss.
        """
