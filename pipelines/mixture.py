"""What a cluster's steps are planned for on paper: a dataset, or a named mixture."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from loader.buckets import Bucket, BucketConfig, Budgets, assign, buckets_of
from loader.cost import Cost
from loader.dataset.plan_index import PlanIndex
from loader.epoch import dataset_packs, dataset_steps
from loader.microbatches import Microbatches
from loader.packed_steps import PackedStep, packed_steps
from loader.policy import Division, budgets_of
from loader.simulate import PlannedStep, planned_steps
from loader.workloads import WORKLOADS

_STEPS_AT_ONCE = 2


@dataclass(frozen=True)
class Mixture:
    """What is planned for.

    Attributes:
        name: as the person gave it.
        buckets: shapes.
        budgets: of a microbatch or a pack.
        steps: the first so many steps under a division and a cost.
        packs: the same in packs.
    """

    name: str
    buckets: tuple[Bucket, ...]
    budgets: Budgets
    steps: Callable[[Division, Cost, int], Iterator[tuple[PlannedStep, float]]]
    packs: Callable[[Division, Cost, int], Iterator[tuple[PackedStep, float]]]


def workload(name: str, seed: int) -> Mixture:
    """A named mixture."""
    found = WORKLOADS[name]

    def steps(division: Division, cost: Cost, count: int) -> Iterator[tuple[PlannedStep, float]]:
        sizes = found.batch_sizes(budgets_of(division.policy, found.budgets))

        def draw(step: int) -> Microbatches:
            return found.draw(sizes, seed, step, division.per_step, division.run)

        return planned_steps(draw, division, cost, count)

    def packs(division: Division, cost: Cost, count: int) -> Iterator[tuple[PackedStep, float]]:
        tokens = _STEPS_AT_ONCE * division.per_step * found.budgets.memory_tokens
        samples = partial(found.samples, seed, tokens)
        return packed_steps(
            samples, division.policy, cost, found.budgets, division.ranks, division.microbatches, count
        )

    return Mixture(name, found.buckets, found.budgets, steps, packs)


def dataset(name: str, index: PlanIndex, config: BucketConfig, seed: int) -> Mixture:
    """A dataset's own mixture, from its index."""

    def steps(division: Division, cost: Cost, count: int) -> Iterator[tuple[PlannedStep, float]]:
        assignment = replace(assign(index, budgets_of(division.policy, config)), cost=cost)
        return dataset_steps(assignment, seed, division, count)

    def packs(division: Division, cost: Cost, count: int) -> Iterator[tuple[PackedStep, float]]:
        assignment = replace(assign(index, budgets_of(division.policy, config)), cost=cost)
        return dataset_packs(assignment, seed, division, count)

    return Mixture(name, buckets_of(config), config, steps, packs)
