"""What two states say of each other, against what streams that go on from them train."""

import json
from typing import Any

import pytest

from reelweave.loader.buckets.cost import LinearQuadraticCost
from reelweave.loader.dataset import Dataset
from reelweave.loader.plan.position import EpochSegment, Position, Setting, StreamState, read_state, state_of
from reelweave.loader.stream.state_diff import Relation, diff_states
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config

STEP = Setting(policy="balanced", regime="step", lookahead=4)
SLOT = STEP.model_copy(update={"regime": "slot"})
COSTLY = STEP.model_copy(update={"cost": LinearQuadraticCost(token_s=1, square_s=0)})


def state(*parts: EpochSegment, epoch: int = 0, step: int | None = None, **changes: Any) -> StreamState:
    done = sum(part.steps for part in parts) if step is None else step
    fixed = {"dataset": "d", "config": "c", "seed": 1, **changes}
    return read_state(state_of(Position(done, epoch, parts), **fixed))


CASES: list[tuple[str, StreamState, StreamState, Relation, int]] = [
    ("equal", state(EpochSegment(STEP, 2, 2, 5)), state(EpochSegment(STEP, 2, 2, 5)), "same", 0),
    (
        "other ranks, the same product",
        state(EpochSegment(STEP, 4, 1, 5)),
        state(EpochSegment(STEP, 2, 2, 5)),
        "same",
        0,
    ),
    ("later", state(EpochSegment(STEP, 2, 2, 9)), state(EpochSegment(STEP, 4, 1, 5)), "ahead", 4),
    ("earlier", state(EpochSegment(STEP, 2, 2, 0)), state(EpochSegment(STEP, 2, 2, 5)), "behind", -5),
    (
        "an epoch later",
        state(EpochSegment(STEP, 2, 2, 1), epoch=1, step=8),
        state(EpochSegment(STEP, 2, 2, 5)),
        "ahead",
        3,
    ),
    (
        "other ranks since",
        state(EpochSegment(STEP, 2, 2, 5), EpochSegment(STEP, 3, 1, 2)),
        state(EpochSegment(STEP, 2, 2, 4)),
        "changed_since",
        3,
    ),
    (
        "after the same change",
        state(EpochSegment(STEP, 2, 2, 5), EpochSegment(STEP, 3, 1, 2)),
        state(EpochSegment(STEP, 2, 2, 5), EpochSegment(STEP, 3, 1, 1)),
        "ahead",
        1,
    ),
    (
        "changed before any step",
        state(EpochSegment(STEP, 2, 2, 0)),
        state(EpochSegment(STEP, 3, 1, 5)),
        "changed_before",
        -5,
    ),
    (
        "another cost from the start",
        state(EpochSegment(STEP, 2, 2, 2)),
        state(EpochSegment(COSTLY, 2, 2, 2)),
        "forked",
        0,
    ),
    (
        "changed at another step",
        state(EpochSegment(STEP, 2, 2, 5), EpochSegment(STEP, 3, 1, 2)),
        state(EpochSegment(STEP, 2, 2, 6)),
        "forked",
        1,
    ),
    (
        "the next epoch made otherwise",
        state(EpochSegment(STEP, 2, 2, 3)),
        state(EpochSegment(STEP, 3, 2, 1), epoch=1, step=9),
        "changed_before",
        -6,
    ),
    (
        "two ways to begin",
        state(EpochSegment(STEP, 2, 2, 0)),
        state(EpochSegment(STEP, 3, 1, 0)),
        "forked",
        0,
    ),
    ("another regime", state(EpochSegment(STEP, 2, 2, 3)), state(EpochSegment(SLOT, 2, 2, 3)), "forked", 0),
    (
        "another seed",
        state(EpochSegment(STEP, 2, 2, 3)),
        state(EpochSegment(STEP, 2, 2, 3), seed=2),
        "incompatible",
        0,
    ),
    (
        "other data",
        state(EpochSegment(STEP, 2, 2, 3)),
        state(EpochSegment(STEP, 2, 2, 4), dataset="e"),
        "incompatible",
        -1,
    ),
]
MIRRORED: dict[Relation, Relation] = {
    "ahead": "behind",
    "behind": "ahead",
    "changed_since": "changed_before",
    "changed_before": "changed_since",
}


@pytest.mark.parametrize(
    ("one", "other", "relation", "steps"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_relations(one: StreamState, other: StreamState, relation: Relation, steps: int) -> None:
    there, back = diff_states(one, other), diff_states(other, one)
    assert (there.relation, there.steps_ahead) == (relation, steps)
    assert (back.relation, back.steps_ahead) == (MIRRORED.get(relation, relation), -steps)
    assert there.same_plan == back.same_plan == (relation in {"same", "ahead", "behind"})
    assert bool(there.differences) == (one != other)


def test_fields_that_differ_are_named_with_what_they_mean() -> None:
    one = state(EpochSegment(STEP, 4, 1, 5), EpochSegment(STEP, 3, 1, 2))
    other = state(
        EpochSegment(STEP, 2, 2, 5),
        EpochSegment(COSTLY, 3, 1, 6),
        EpochSegment(SLOT, 3, 1, 1),
        epoch=0,
        step=20,
        seed=2,
    )
    found = {different.field: different for different in diff_states(one, other).differences}
    assert set(found) == {
        "seed",
        "step",
        "parts.0.ranks",
        "parts.0.microbatches",
        "parts.1.cost",
        "parts.1.steps",
        "parts.2",
    }
    assert found["parts.0.ranks"][1:] == (4, 2, "the same samples in every step")
    assert found["parts.1.cost"].first is None
    assert found["parts.1.cost"].second["token_s"] == 1
    assert found["parts.1.steps"][1:] == (2, 6, "4 more in B")
    assert found["parts.2"].first is None
    json.dumps([different._asdict() for different in found.values()])


def taken(
    dataset: Dataset, saved: StreamState, changes: dict[str, Any], ranks: int
) -> tuple[list[set[str]], StreamState]:
    """The keys of the steps that are left of a run of two epochs, and the state behind the first of them."""
    steps: dict[int, set[str]] = {}
    state: dict[str, Any] = {}
    for rank in range(ranks):
        stream = VideoStream(dataset, config(**changes), rank, ranks)
        stream.load_state_dict(saved.model_dump(mode="json"))
        for micro in stream:
            steps.setdefault(micro.step, set()).update(micro.keys)
            if micro.step == saved.step and micro.ends_step:
                state = stream.state_after(micro)
    return [steps[number] for number in sorted(steps)], read_state(state)


@pytest.mark.parametrize(
    ("changes", "ranks", "same_plan"),
    [
        ({"microbatches": 1}, 2, True),
        ({"microbatches": 2, "lookahead": 2}, 1, True),
        ({"microbatches": 1}, 1, False),
        ({"microbatches": 2, "regime": "slot"}, 1, False),
    ],
)
def test_streams_agree_with_the_verdict(
    dataset: Dataset, changes: dict[str, Any], ranks: int, same_plan: bool
) -> None:
    own = {"microbatches": 2}
    start = read_state(VideoStream(dataset, config(**own)).state_dict())
    first, after_one = taken(dataset, start, own, 1)
    second, after_other = taken(dataset, after_one, changes, ranks)
    diff = diff_states(after_one, after_other)
    assert diff.same_plan is same_plan
    assert (first[1:] == second) is same_plan
