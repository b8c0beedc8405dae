"""Stages of a run by step."""

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
    found = [curriculum.place_at(step) for step in (0, 99, 100, 249, 250, 10**9)]
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
        ([{"sizes": [[64, 80], [64, 80]]}], "sizes holds one value twice"),
    ],
)
def test_a_wrong_curriculum_is_refused(stages: list[dict[str, object]], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        for stage in Curriculum.model_validate(stages).root:
            stage.buckets(BUCKETS)
