"""Arachne's gradient sum by representatives (section IV-D), where it is exact, and refused where it is not.

There each rank holds whole gradients of all samples that it ran a part of, summed: a composite. The paper takes a
minimum set of ranks that together have all samples and sums their composites; but a sample that two of them have then
counts twice: with A on ranks 0 and 1, B on 0 and C on 1 the only such set gives 2A + B + C. What is looked for here is
an exact cover, ranks that have every sample once. Cascades by themselves need none of this: ranks hold partial
gradients, of their own tokens, which are summed once over all ranks.
"""

from collections.abc import MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from train.cascade.execution.pool import Group, Pool
from train.cascade.execution.work import Work
from train.cascade.problem import Module
from train.cascade.schedule import Schedule
from train.distributed.world import World
from train.parallel.context.context import ContextParallel

_MOST_TRIES = 100_000


@dataclass(frozen=True)
class Representatives:
    """Ranks whose composites add up to the gradient.

    Attributes:
        groups: a representative first, then the ranks that it gives the sum to.
    """

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> "Representatives | None":
        """Of a plan; None where no ranks have every sample exactly once, or none were found in a bounded search."""
        samples_R: list[set[int]] = [set() for _ in range(schedule.gpus)]
        for run in schedule.runs:
            if run.cascade.module == Module.DIT:
                for rank in run.gpus:
                    samples_R[rank].add(run.cascade.sample)
        chosen = exact_cover(samples_R)
        if chosen is None:
            return None
        others = [rank for rank in range(schedule.gpus) if rank not in chosen]
        return cls(tuple((own, *others[place :: len(chosen)]) for place, own in enumerate(chosen)))

    @property
    def ranks(self) -> Group:
        """The representatives."""
        return tuple(sorted(group[0] for group in self.groups))

    def prepare(self, pool: Pool) -> None:
        """Makes the groups for it; a collective."""
        pool.prepare([self.ranks, *(tuple(sorted(group)) for group in self.groups)])

    def sum_(self, world: World, pool: Pool, gradients: Sequence[torch.Tensor]) -> None:
        """Replaces composites by the sum of all samples' gradients, on every rank."""
        own = next(group for group in self.groups if world.rank in group)
        if len(self.ranks) > 1 and world.rank in self.ranks:
            everywhere = World(
                self.ranks.index(world.rank), len(self.ranks), world.device, pool.group(self.ranks)
            )
            everywhere.sum_(gradients)
        if len(own) > 1:
            for gradient in gradients:
                dist.broadcast(gradient, src=own[0], group=pool.group(tuple(sorted(own))))


def exact_cover(samples_R: Sequence[AbstractSet[int]]) -> Group | None:
    """Ranks that have every sample exactly once; None where there are none.

    Algorithm X: the sample that the fewest ranks could stand for is settled first (Knuth, "Dancing Links", 2000).

    Args:
        samples_R: of each rank.
    """
    # Ranks with the same samples can stand for each other.
    first: dict[frozenset[int], int] = {}
    for rank, samples in enumerate(samples_R):
        if samples:
            first.setdefault(frozenset(samples), rank)
    tries = 0

    def search(left: frozenset[int], allowed: list[frozenset[int]]) -> list[int] | None:
        nonlocal tries
        tries += 1
        if not left:
            return []
        if tries > _MOST_TRIES:
            return None
        hardest = min(left, key=lambda sample: (sum(sample in one for one in allowed), sample))
        for chosen in allowed:
            if hardest in chosen:
                rest = search(left - chosen, [one for one in allowed if not one & chosen])
                if rest is not None:
                    return [first[chosen], *rest]
        return None

    largest_first = sorted(first, key=lambda one: (-len(one), first[one]))
    found = search(frozenset().union(*samples_R), largest_first)
    return None if found is None else tuple(sorted(found))


class Whole:
    """A `Work` whose DiTs leave whole gradients of their samples on each of their ranks, summed within their group.

    Args:
        work: what it does else.
        weights: that get gradients; all of them have one.
    """

    def __init__(self, work: Work, weights: Sequence[nn.Parameter]) -> None:
        self._work, self._weights = work, weights
        self.owner, self.wants, self.gives = work.owner, work.wants, work.gives
        self.source, self.make = work.source, work.make

    def train(
        self,
        sample: int,
        given: MutableMapping[Module, list[torch.Tensor]],
        context: ContextParallel | None,
        first: bool,
    ) -> None:
        if context is None:
            self._work.train(sample, given, context, first)
            return
        before = [weight.grad for weight in self._weights]
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
        self._work.train(sample, given, context, first)
        for weight, grad in zip(self._weights, before, strict=True):
            assert weight.grad is not None
            assert grad is not None
            dist.all_reduce(weight.grad, group=context.group)
            weight.grad = grad.add_(weight.grad)
