"""Whether planned steps train every sample alike, whatever its length, B and rank: on the gradients of a real DiT.

A step holds n samples on all ranks; the T steps of an epoch hold the N of the dataset. g is a step's gradient as it is
trained: the sum of weight x gradient of the mean loss over its microbatches. G is the mean of all samples' gradients,
what uniform sampling expects.

- g is the mean over the step's samples, and the sum of n / N x g over an epoch is G: exactly.
- n / (N / T) x g expects G: in every step where ranks wait once a step (but the last, where fillers fill it up), in a
  step picked at random where they wait in every slot. There a step's place in the window of lookahead decides a little
  of what it holds, and `same_bucket` keeps what fills no run for the end.
- g alone is a ratio of two sums that vary together. Its mean over the steps of an epoch is off by
  -Cov(g, n) / (N / T): a bias that falls as one over the microbatches of a step, and that more steps do not average
  away (docs/notes/planning.md has its size).
- The mean of the ranks' own means, which DDP takes where nothing is weighed, stays off at any number of ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from reelweave.loader.batch import Microbatch
from reelweave.loader.buckets.assignment import Assignment, Bucket, Budgets, batch_size
from reelweave.loader.buckets.cost import PowerCost
from reelweave.loader.buckets.unassigned import Unassigned
from reelweave.loader.plan.epoch_plan import PlannedMicrobatch, StepPlan, plan_epoch
from reelweave.loader.plan.policy import StepLayout, budgets_of
from reelweave.loader.plan.position import Position
from reelweave.train.config.model import DiTConfig
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.step.losses import losses
from tests.thorough import thorough
from tests.train.clips import clip, tiny_config

SAMPLES = {
    Bucket(1, 8, 8): 40,
    Bucket(1, 16, 8): 20,
    Bucket(3, 8, 8): 20,
    Bucket(3, 8, 16): 24,
    Bucket(3, 16, 16): 16,
}
BUCKETS = tuple(SAMPLES)
BUCKET_OF = np.repeat(np.arange(len(BUCKETS)), list(SAMPLES.values()))
N = len(BUCKET_OF)
MIXED = Budgets(memory_tokens=64, compute_budget=30.0**2)  # B is 16, 8, 5, 1 and 1
ALONE = Budgets(memory_tokens=64, max_batch=1)

LAYOUTS = {
    "balanced": StepLayout(3, 2, "balanced"),
    "dual_constraint": StepLayout(6, 1, "dual_constraint"),
    "equal_token": StepLayout(4, 1, "equal_token"),
    "same_bucket": StepLayout(3, 2, "same_bucket", "slot"),
    "slots": StepLayout(3, 2, "balanced", "slot", lookahead=3),
}
EPOCHS = 500
DIRECTIONS = 8


def assignment(layout: StepLayout, budgets: Budgets = MIXED) -> Assignment:
    budgets = budgets_of(layout.policy, budgets)
    lengths = tuple(b.frames * b.height * b.width // 16 for b in BUCKETS)
    return Assignment(
        buckets=BUCKETS,
        lengths=lengths,
        batch_sizes=tuple(batch_size(length, budgets) for length in lengths),
        budgets=budgets,
        cost=PowerCost(),
        text_tokens=np.zeros(len(BUCKET_OF), np.int32),
        max_text_tokens=0,
        bucket_of=BUCKET_OF,
        unassigned=Unassigned(np.zeros(0, np.int64), np.zeros(0, np.int32), ()),
    )


class Model:
    """A DiT in float64 that is no identity, and samples of fixed time and noise."""

    def __init__(self) -> None:
        tiny = DiTConfig(hidden=24, heads=2, layers=2, patch=(1, 4, 4))
        # Latents are float32: those of single pixels are the same bits in every batch.
        pixels = PatchTransformConfig(frames=1, height=1, width=1)
        config = tiny_config().model_copy(update={"model": tiny, "tokenizer": pixels})
        self.config, self.bundle = config, Bundle(config)
        torch.manual_seed(0)
        for parameter in self.bundle.dit.parameters():
            torch.nn.init.normal_(parameter, std=0.1)

    def gradient(self, step: StepPlan) -> np.ndarray:
        """Of a step, summed over its microbatches as the trainer does it; [P]."""
        self.bundle.zero_grad()
        for micro in step.microbatches:
            rows = micro.rows.tolist()
            batch = Microbatch(
                bucket=BUCKETS[micro.bucket],
                length=1,
                keys=tuple(f"sample{row}" for row in rows),
                captions=tuple("a wave going far out to sea"[: 3 * (row % 9)] for row in rows),
                passes=(0,) * len(rows),
                video_BCTHW=torch.stack([footage(row) for row in rows]),
                step=0,
                epoch=0,
                weight=micro.weight,
                step_samples=step.samples,
                mean_samples=step.samples,
                slot=micro.slot,
                slots=1,
                after=Position(0, 0, ()),
            )
            losses_B = losses(self.bundle, self.config, batch, torch.device("cpu")).each
            (batch.weight * losses_B.mean()).backward()
        return torch.cat([w.grad.flatten() for w in self.bundle.trained_weights().values()]).numpy()


def footage(row: int) -> torch.Tensor:
    """A clip; images are brighter than videos, so that what favours one of them shows."""
    bucket = BUCKETS[BUCKET_OF[row]]
    return clip(row, bucket) // 2 + (127 if bucket.frames == 1 else 0)


@dataclass(frozen=True)
class Gradients:
    """Of a model.

    Attributes:
        model: that has them.
        whole: of each sample alone, [N, P].
        along: the same along a few random directions, [N, D].
    """

    model: Model
    whole: np.ndarray
    along: np.ndarray


@pytest.fixture(scope="module")
def gradients() -> Iterator[Gradients]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    try:
        model = Model()
        whole_NP = np.stack([model.gradient(alone(row)) for row in range(N)])
        directions_DP = np.random.default_rng(0).normal(size=(DIRECTIONS, whole_NP.shape[1]))
        yield Gradients(model, whole_NP, whole_NP @ directions_DP.T)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)


def alone(row: int) -> StepPlan:
    """A step of one sample."""
    bucket, rows = int(BUCKET_OF[row]), np.array([row])
    return StepPlan((PlannedMicrobatch(bucket, 0, rows, np.zeros(1, np.int64), 1.0, 0, 0),), 1)


@pytest.mark.parametrize(
    ("layout", "budgets"),
    [
        *(
            pytest.param(layout, MIXED, id=name)
            for name, layout in LAYOUTS.items()
            if name in ("same_bucket", "slots")
        ),
        *(
            pytest.param(layout, MIXED, id=name, marks=thorough)
            for name, layout in LAYOUTS.items()
            if name not in ("same_bucket", "slots")
        ),
        pytest.param(StepLayout(7), ALONE, id="fillers", marks=thorough),
    ],
)
def test_an_epoch_sums_to_the_gradient_of_the_dataset(
    gradients: Gradients, layout: StepLayout, budgets: Budgets
) -> None:
    def off(found: np.ndarray, wanted: np.ndarray) -> float:
        return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))

    epoch_P, mixed_steps = np.zeros(gradients.whole.shape[1]), 0
    for step in plan_epoch(assignment(layout, budgets), 0, 0, layout):
        found_P = gradients.model.gradient(step)
        rows = np.concatenate([micro.rows for micro in step.microbatches if micro.weight])
        assert off(found_P, gradients.whole[rows].mean(axis=0)) < 1e-9
        epoch_P += step.samples / N * found_P
        mixed_steps += len({micro.bucket for micro in step.microbatches}) > 1
    assert off(epoch_P, gradients.whole.mean(axis=0)) < 1e-9
    assert mixed_steps


def own_mean(step: StepPlan, along_ND: np.ndarray) -> np.ndarray:
    """The step's gradient as it is trained, [D]."""
    return sum(micro.weight * along_ND[micro.rows].mean(axis=0) for micro in step.microbatches)


def unweighted(step: StepPlan, ranks: int, along_ND: np.ndarray) -> np.ndarray:
    """The mean of the ranks' means, [D]."""
    own = [[micro.rows for micro in step.microbatches if micro.rank == rank] for rank in range(ranks)]
    return np.mean([along_ND[np.concatenate(rows)].mean(axis=0) for rows in own], axis=0)


def standard_errors(found_ED: np.ndarray, truth_D: np.ndarray) -> float:
    """How far the mean of independent estimates is off, along the worst direction."""
    error_D = found_ED.std(axis=0, ddof=1) / np.sqrt(len(found_ED))
    return float((np.abs(found_ED.mean(axis=0) - truth_D) / error_D).max())


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, id=name, marks=() if name in ("same_bucket", "dual_constraint") else thorough)
        for name, layout in LAYOUTS.items()
    ],
)
def test_a_step_expects_the_gradient_of_uniform_sampling(gradients: Gradients, layout: StepLayout) -> None:
    along_ND, parts, pick = gradients.along, assignment(layout), np.random.default_rng(1)
    constant, naive = [], []
    for epoch in range(EPOCHS):
        plan = plan_epoch(parts, 0, epoch, layout)
        step = plan[0 if layout.regime == "step" else int(pick.integers(len(plan)))]
        constant.append(step.samples / (N / len(plan)) * own_mean(step, along_ND))
        naive.append(unweighted(step, layout.ranks, along_ND))
    constant_off, naive_off = (
        standard_errors(np.array(found), along_ND.mean(axis=0)) for found in (constant, naive)
    )
    assert constant_off < 4
    assert naive_off > 8


@thorough
def test_the_bias_of_a_steps_own_mean_falls_with_its_microbatches(gradients: Gradients) -> None:
    along_ND = gradients.along

    def off(ranks: int) -> tuple[float, float]:
        layout = StepLayout(ranks, 1, "dual_constraint")
        steps = [step for epoch in range(100) for step in plan_epoch(assignment(layout), 0, epoch, layout)]
        own_TD = np.array([own_mean(step, along_ND) for step in steps])
        naive_TD = np.array([unweighted(step, ranks, along_ND) for step in steps])
        own, naive = (
            np.linalg.norm((one - along_ND.mean(axis=0)).mean(axis=0)) for one in (own_TD, naive_TD)
        )
        return float(own), float(naive)

    own_1, naive_1 = off(1)
    own_8, naive_8 = off(8)
    assert own_1 == pytest.approx(naive_1)
    assert own_8 < 0.2 * own_1
    assert naive_8 > 0.7 * naive_1
