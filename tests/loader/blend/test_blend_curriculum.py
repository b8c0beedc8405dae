"""Stages of a run by step."""

from itertools import pairwise

import pytest
from pydantic import ValidationError

from reelweave.loader.blend import Curriculum
from tests.loader.stream_clips import BUCKETS

STAGES = [
    {"until_step": 100, "weights": {"images": 1.0, "videos": 0.0}, "frames": [5]},
    {"until_step": 250, "weights": [0.5, 0.5], "sizes": [[64, 80]]},
    {},
]


def test_a_step_belongs_to_the_stage_it_comes_before_the_end_of() -> None:
    curriculum = Curriculum.model_validate(STAGES)
    found = [curriculum.stage_at(step) for step in (0, 99, 100, 249, 250, 10**9)]
    assert found == [0, 0, 1, 1, 2, 2]


def test_a_stage_changes_the_buckets_it_names_and_leaves_the_others() -> None:
    first, second, last = (stage.buckets(BUCKETS) for stage in Curriculum.model_validate(STAGES).root)
    assert first == BUCKETS.model_copy(update={"frames": (5,)})
    assert second == BUCKETS.model_copy(update={"sizes": ((64, 80),)})
    assert last == BUCKETS


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "at least 1"),
        ([{"until_step": 5}], "the last stage lasts for ever"),
        ([{}, {}], "until_step must rise"),
        ([{"until_step": 5}, {"until_step": 5}, {}], "until_step must rise"),
        ([{"until_step": 5, "weight": {}}, {}], "weight"),
        ([{"weights": {"a": -1}}], "weights"),
        ([{"frames": []}], "frames"),
        ([{"weights": {"a": 1}, "to_weights": {"a": 2}}], "to_weights needs until_step"),
        ([{"until_step": 5, "to_weights": {"a": 2}}, {}], "needs weights of the same nodes"),
        ([{"until_step": 5, "weights": [1.0], "to_weights": [0]}, {}], "needs a weight above 0"),
        ([{"until_step": 5, "weights": [1.0], "to_weights": {"a": 2}}, {}], "in the same form"),
        ([{"until_step": 5, "weights": {"b": 1}, "to_weights": {"a": 2}}, {}], "of the same nodes: a"),
        (
            [{"until_step": n, "weights": {"a": 1}, "to_weights": {"a": 2}, "pieces": 30} for n in (500, 900)]
            + [{}],
            "have 60 pieces, and 48 is the most",
        ),
        ([{"sizes": [[64, 80], [64, 80]]}], "sizes holds one value twice"),
    ],
)
def test_a_wrong_curriculum_is_refused(stages: list[dict[str, object]], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        for stage in Curriculum.model_validate(stages).root:
            stage.buckets(BUCKETS)


def course(**changes: object) -> list[tuple[int | None, dict[str, float]]]:
    """End and weights of each piece of a stage of 100 steps, and of the stage behind it."""
    stage = {"until_step": 100, "weights": {"a": 1.0, "b": 0.0}, "to_weights": {"a": 0.0, "b": 1.0}}
    curriculum = Curriculum.model_validate([{**stage, **changes}, {"weights": {"a": 0.0, "b": 1.0}}])
    return [(stage.until_step, dict(stage.weights)) for stage in curriculum.stages]


def test_weights_change_in_pieces_of_equal_length() -> None:
    assert course(pieces=4) == [
        (25, {"a": 0.875, "b": 0.125}),
        (50, {"a": 0.625, "b": 0.375}),
        (75, {"a": 0.375, "b": 0.625}),
        (100, {"a": 0.125, "b": 0.875}),
        (None, {"a": 0.0, "b": 1.0}),
    ]


def test_a_cosine_is_slow_at_both_ends_and_means_the_same() -> None:
    *pieces, _ = [weights["b"] for _, weights in course(pieces=16, course="cosine")]
    steps = [after - before for before, after in pairwise(pieces)]
    assert sum(pieces) / 16 == pytest.approx(0.5)
    assert min(steps) > 0
    assert steps[0] < steps[7] / 4 > steps[-1]


def test_no_piece_is_shorter_than_a_step() -> None:
    assert [until for until, _ in course(until_step=3)] == [1, 2, 3, None]


def test_pieces_keep_the_shapes_and_the_index_of_their_stage() -> None:
    stages = [
        {"until_step": 10},
        {"until_step": 30, "weights": [1.0, 3.0], "to_weights": [3.0, 1.0], "pieces": 2, "frames": [9]},
        {},
    ]
    curriculum = Curriculum.model_validate(stages)
    assert curriculum.given == (0, 1, 1, 2)
    assert [stage.frames for stage in curriculum.stages] == [None, (9,), (9,), None]
    assert [stage.weights for stage in curriculum.stages] == [None, (1.5, 2.5), (2.5, 1.5), None]
    assert [stage.until_step for stage in curriculum.stages] == [10, 20, 30, None]


def test_a_curriculum_without_courses_is_written_as_before() -> None:
    """States hold a digest of these values."""
    (first, *_) = Curriculum.model_validate(STAGES).model_dump(mode="json")
    assert set(first) == {"until_step", "weights", "frames", "sizes"}
