"""Arachne's gradient reduction by representatives (section IV-D), applied only where it is exact.

In the paper each rank holds a composite: the sum of whole gradients of all samples that it ran a part of.
Composites of a minimum set of ranks that covers all samples are summed. A sample on two of these ranks counts
twice: with A on ranks 0 and 1, B on 0 and C on 1 the only such set gives 2A + B + C. This module therefore
searches an exact cover, in which every sample occurs once. The default reduction needs none: ranks hold partial
gradients of their own tokens, summed once by an all-reduce over all ranks.
"""

from collections.abc import MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from reelweave.train.cascade.execution.ops import CascadeOps
from reelweave.train.cascade.execution.pool import Group
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.distributed.world import World
from reelweave.train.parallel.context.context import ContextParallel

_MOST_TRIES = 100_000


@dataclass(frozen=True)
class Representatives:
    """Ranks whose composites sum to the step's gradient.

    Attributes:
        ranks: ranks of the representatives, rising.
    """

    ranks: Group

    @classmethod
    def of(cls, schedule: Schedule) -> "Representatives | None":
        """Find the representatives of a plan; None without an exact cover, or if a bounded search finds none."""
        samples_R: list[set[int]] = [set() for _ in range(schedule.gpus)]
        for run in schedule.runs:
            if run.cascade.module == Module.DIT:
                for rank in run.gpus:
                    samples_R[rank].add(run.cascade.sample)
        chosen = exact_cover(samples_R)
        return None if chosen is None else cls(chosen)

    def sum_(self, world: World, gradients: Sequence[torch.Tensor]) -> None:
        """Replace composites by the sum of all samples' gradients, on every rank.

        The other ranks add zeros to one sum over all ranks. A group of its own for every plan would have to
        be made in every step.
        """
        if world.rank not in self.ranks:
            for gradient in gradients:
                gradient.zero_()
        world.sum_(gradients)


def exact_cover(samples_R: Sequence[AbstractSet[int]]) -> Group | None:
    """Return ranks that cover every sample exactly once; None if there are none.

    Algorithm X: branch on the sample with the fewest candidate ranks first (Knuth, "Dancing Links", 2000).

    Args:
        samples_R: samples of each rank.
    """
    # Ranks with the same samples are interchangeable.
    first: dict[frozenset[int], int] = {}
    for rank, samples in enumerate(samples_R):
        if samples:
            first.setdefault(frozenset(samples), rank)
    tries = 0

    def search(uncovered: frozenset[int], allowed: list[frozenset[int]]) -> list[int] | None:
        nonlocal tries
        tries += 1
        if not uncovered:
            return []
        if tries > _MOST_TRIES:
            return None
        hardest = min(uncovered, key=lambda sample: (sum(sample in samples for samples in allowed), sample))
        for chosen in allowed:
            if hardest in chosen:
                rest = search(uncovered - chosen, [samples for samples in allowed if not samples & chosen])
                if rest is not None:
                    return [first[chosen], *rest]
        return None

    largest_first = sorted(first, key=lambda samples: (-len(samples), first[samples]))
    cover = search(frozenset().union(*samples_R), largest_first)
    return None if cover is None else tuple(sorted(cover))


class WholeGradients:
    """Computation whose DiTs leave whole gradients of their samples on each rank, summed within the group.

    Args:
        work: computation to wrap.
        weights: trained parameters; each has a gradient.
    """

    def __init__(self, work: CascadeOps, weights: Sequence[nn.Parameter]) -> None:
        self._work, self._weights = work, weights
        self.owner, self.input_specs, self.output_specs = work.owner, work.input_specs, work.output_specs
        self.source, self.make = work.source, work.make

    def train(
        self,
        sample: int,
        module_outputs: MutableMapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        if context is None:
            self._work.train(sample, module_outputs, context, first)
            return
        before = [weight.grad for weight in self._weights]
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        self._work.train(sample, module_outputs, context, first)
        for weight, grad in zip(self._weights, before, strict=True):
            assert weight.grad is not None
            assert grad is not None
            dist.all_reduce(weight.grad, group=context.group)
            weight.grad = grad.add_(weight.grad)
