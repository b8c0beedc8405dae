"""What the cascades of a step compute: the executor's view of a model and its data."""

import math
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple, Protocol

import torch

from train.cascade.problem import Cascade, Module
from train.parallel.context.context import ContextParallel


class Part(NamedTuple):
    """A tensor that goes from one rank to another; its size is known on all of them before it is there.

    Attributes:
        shape: of it.
        dtype: of its values.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """That it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


class Work(Protocol):
    """What the cascades of a step compute; one object on each rank, which agree on all but `source`."""

    def owner(self, sample: int) -> int:
        """The rank that has read a sample."""

    def wants(self, cascade: Cascade) -> Sequence[Part]:
        """What a text or VAE cascade takes of its sample's owner, such as the pixels of each clip; often nothing.

        As many parts as the cascade gives, or none.
        """

    def gives(self, cascade: Cascade) -> Sequence[Part]:
        """What the DiT takes of a module, such as the latents of each clip; nothing where it makes them itself.

        Where the plan has no such cascade they are stored, and `source` has them at the owner.
        """

    def source(self, cascade: Cascade) -> Sequence[torch.Tensor]:
        """What the owner has, on the CPU: what the cascade wants; or what it would give, where the plan has none.

        Called at the owner alone.
        """

    def make(
        self, cascade: Cascade, numbers: Sequence[int], taken: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Runs this rank's share of a text or VAE cascade.

        Args:
            cascade: of any degree.
            numbers: of the parts that this rank makes; there may be none.
            taken: what these parts are made of, on the device; nothing where the cascade wants nothing.

        Returns:
            These parts, on the device.
        """

    def train(
        self,
        sample: int,
        given: MutableMapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        """Runs the DiT forward and backward on this rank's part of a sample's tokens.

        Gradients add up in the weights, as raw partial sums: their sum over all ranks is the step's.

        Args:
            sample: its number.
            given: what the modules have given, on the device; the mapping is emptied by who takes it out.
            context: who shares the tokens; None: this rank has all of them.
            first: whether this rank is the one of its group that reports the loss.
        """
