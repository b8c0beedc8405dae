"""Mixtures of shapes to plan steps for: a dataset, a blend, or a named workload."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Assignment, Bucket, BucketConfig, Budgets, assign, buckets_of
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.microbatches import Microbatches
from reelweave.loader.plan.policy import Policy, StepLayout, budgets_of
from reelweave.loader.plan.shuffle import Shuffle
from reelweave.loader.read.locality import Locality, locality, near_rows
from reelweave.loader.simulation.dataset_steps import dataset_packs, dataset_steps, draws_of
from reelweave.loader.simulation.packed_steps import PackedStep, packed_steps
from reelweave.loader.simulation.simulate import PlannedStep, planned_steps
from reelweave.loader.simulation.workloads import WORKLOADS

_STEPS_AT_ONCE = 2
_RUNS = (1, 4, 16)


@dataclass(frozen=True)
class Mixture:
    """Mixture of shapes that training draws from.

    Attributes:
        name: name given on the command line.
        buckets: shapes of microbatches.
        budgets: limits of a microbatch or a pack.
        steps: function from layout, cost and count to the first steps.
        packs: the same for packs.
        locality: function to what steps read, by ``shuffle.run``; None for a workload, which has no files.
    """

    name: str
    buckets: tuple[Bucket, ...]
    budgets: Budgets
    steps: Callable[[StepLayout, Cost, int], Iterator[tuple[PlannedStep, float]]]
    packs: Callable[[StepLayout, Cost, int], Iterator[tuple[PackedStep, float]]]
    locality: Callable[[StepLayout, Cost], dict[int, Locality]] | None = None


def workload(name: str, seed: int, budgets: Budgets | None = None) -> Mixture:
    """Return a named workload.

    Args:
        name: one of `WORKLOADS`.
        seed: seed of the stream, 0 to 2^64 - 1.
        budgets: limits in place of its own.
    """
    preset = WORKLOADS[name] if budgets is None else replace(WORKLOADS[name], budgets=budgets)

    def steps(layout: StepLayout, cost: Cost, count: int) -> Iterator[tuple[PlannedStep, float]]:
        sizes = preset.batch_sizes(budgets_of(layout.policy, preset.budgets))

        def draw(step: int) -> Microbatches:
            return preset.draw(sizes, seed, step, layout.per_step, layout.run)

        return planned_steps(draw, layout, cost, count)

    def packs(layout: StepLayout, cost: Cost, count: int) -> Iterator[tuple[PackedStep, float]]:
        tokens = _STEPS_AT_ONCE * layout.per_step * preset.budgets.memory_tokens
        samples = partial(preset.samples, seed, tokens)
        return packed_steps(
            samples, layout.policy, cost, preset.budgets, layout.ranks, layout.microbatches, count
        )

    return Mixture(name, preset.buckets, preset.budgets, steps, packs)


def dataset(name: str, source: SampleSource, config: BucketConfig, seed: int) -> Mixture:
    """Return the mixture of a dataset or a blend, from its index."""

    def assign_mixture(policy: Policy, cost: Cost) -> Assignment:
        return replace(assign(source.plan_index, budgets_of(policy, config)), cost=cost)

    def steps(layout: StepLayout, cost: Cost, count: int) -> Iterator[tuple[PlannedStep, float]]:
        assignment = assign_mixture(layout.policy, cost)
        return dataset_steps(assignment, draws_of(source, assignment, seed), seed, layout, count)

    def packs(layout: StepLayout, cost: Cost, count: int) -> Iterator[tuple[PackedStep, float]]:
        assignment = assign_mixture(layout.policy, cost)
        return dataset_packs(assignment, draws_of(source, assignment, seed), seed, layout, count)

    def read(layout: StepLayout, cost: Cost) -> dict[int, Locality]:
        assignment, index = assign_mixture(layout.policy, cost), source.plan_index
        near_N, draws = near_rows(index), draws_of(source, assignment, seed)(0)
        columns = {}
        for run in _RUNS:
            shuffle = Shuffle(order="permuted", run=run)
            plan = plan_epoch(assignment, seed, 0, layout, draws=draws, shuffle=shuffle, near_N=near_N)
            columns[run] = locality(index, plan, near_N)
        return columns

    return Mixture(name, buckets_of(config), config, steps, packs, read)
