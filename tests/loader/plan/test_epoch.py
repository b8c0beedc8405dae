"""The steps of a dataset as a report sees them: those of training."""

import numpy as np
import pytest

from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.buckets.cost import seconds
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import POLICIES, Policy, StepLayout
from reelweave.loader.simulation.dataset_steps import dataset_steps
from reelweave.loader.simulation.simulate import PlannedStep
from tests.loader.samples import plan_index

CONFIG = BucketConfig(
    frames=(1, 9, 17),
    sizes=((64, 64), (64, 128)),
    compression=Compression(frames=8, height=16, width=16, causal=True),
    max_text_tokens=20,
    memory_tokens=400,
)
GENERATOR = np.random.default_rng(0)
INDEX = plan_index(
    frames=GENERATOR.choice([1, 9, 10, 17, 25], 300),
    height=64,
    width=64 + 64 * GENERATOR.integers(0, 2, 300),
    text_tokens=GENERATOR.integers(0, 40, 300),
)
ASSIGNMENT = assign(INDEX, CONFIG)


def whole(epoch: int) -> Draws:
    return Draws.once(np.arange(300), epoch)


def steps(layout: StepLayout, count: int) -> list[PlannedStep]:
    return [step for step, _ in dataset_steps(ASSIGNMENT, whole, 1, layout, count)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_report_measures_the_steps_that_are_trained(policy: Policy) -> None:
    layout = StepLayout(3, 2, policy)
    plans = [plan_epoch(ASSIGNMENT, 1, epoch, layout) for epoch in (0, 1)]
    found = steps(layout, 2 * len(plans[0]))
    assert [step.number for step in found] == list(range(2 * len(plans[0])))
    for step, trained in zip(found, [step for plan in plans for step in plan], strict=True):
        table = step.table().to_pydict()
        micros = trained.microbatches
        assert table["bucket"] == [micro.bucket for micro in micros]
        assert table["B"] == [len(micro.rows) for micro in micros]
        assert list(zip(table["rank"], table["slot"], strict=True)) == [
            (micro.rank, micro.slot) for micro in micros
        ]
        assert table["cost"] == seconds(ASSIGNMENT.cost, table["B"], table["S"]).tolist()


def test_tokens_and_images_are_those_of_the_samples() -> None:
    plan = plan_epoch(ASSIGNMENT, 1, 0, StepLayout(2, 2))
    assert plan.fillers == 0
    epoch = [step.microbatches for step in steps(StepLayout(2, 2), len(plan))]
    text = np.minimum(INDEX.text_tokens, 20)
    visual = np.array(ASSIGNMENT.lengths)[ASSIGNMENT.bucket_of] - 20
    assert sum(part.tokens.sum() for part in epoch) == (text + visual).sum()
    image = np.array([bucket.frames == 1 for bucket in ASSIGNMENT.buckets])
    assert sum(part.images.sum() for part in epoch) == image[ASSIGNMENT.bucket_of].sum()


def test_too_few_samples_for_a_step_are_refused() -> None:
    with pytest.raises(UsageError, match="300 samples in buckets cannot fill the 5000 microbatches"):
        steps(StepLayout(5000), 1)


def test_samples_that_fit_no_bucket_are_not_told_to_be_in_one() -> None:
    """Fewer rows than a step has microbatches, none of which fits: they were said to be in buckets, and in none."""
    small = plan_index(frames=[9, 9], height=16, width=16, text_tokens=[1, 1])
    with pytest.raises(
        UsageError, match=r"^2 samples cannot fill the 4 .*; 2 samples fit no bucket, 2 of them"
    ):
        plan_epoch(assign(small, CONFIG), 1, 0, StepLayout(4))
