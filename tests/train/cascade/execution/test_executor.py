"""Plans on real process groups: gradients, handoffs, room, and what happens when ranks disagree or die."""

import json

import pytest

from tests.thorough import beyond, nightly, thorough
from tests.train.cascade.execution import programs, sharded_programs
from tests.train.ranks import Ranks


def run(ranks: Ranks, program, size: int, *arguments) -> None:
    ended = ranks.run(program, size, *arguments)
    assert ended.codes == [0] * size, "\n".join(ended.errors)


@pytest.mark.parametrize(
    ("size", "first", "count", "dtype"), beyond(1, [(4, 0, 6, "float64"), (8, 50, 3, "float32")])
)
def test_random_plans_give_the_gradients_of_one_process(ranks, size, first, count, dtype):
    run(ranks, programs.check_plans, size, first, count, dtype)


@nightly
def test_dits_whose_weights_are_sharded_give_them_too_and_no_rank_holds_more_than_its_part(ranks, tmp_path):
    run(ranks, sharded_programs.measure_sharded, 4, "dit", 2, 0, 3, str(tmp_path / "told.json"))
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["idle"] > 0, "some block has no DiT in some plan"


@thorough
def test_they_do_with_little_room_for_handoffs(ranks):
    run(ranks, programs.check_plans, 4, 20, 4, "float64", 46_300)


@thorough
def test_one_process_needs_no_groups(ranks):
    run(ranks, programs.check_plans, 1, 0, 4, "float64")


@thorough
def test_representatives_give_them_too_where_there_are_any(ranks):
    run(ranks, programs.check_representatives, 4, 10, 8)


@thorough
def test_weights_do_not_depend_on_the_plan(ranks):
    run(ranks, programs.train_by, 4, 1, 2, 6)


def test_what_a_module_gives_comes_to_the_last_bit(ranks):
    run(ranks, programs.check_handoffs, 4)


@pytest.mark.parametrize(("limit_mib", "most_mib"), beyond(1, [(2, 2), (None, 12)]))
def test_handoffs_keep_to_their_room_and_leave_nothing_behind(ranks, limit_mib, most_mib):
    run(ranks, programs.check_room, 4, limit_mib, most_mib)


def test_another_order_on_one_rank_is_told_before_anything_runs(ranks):
    ended = ranks.run(programs.shuffled_on, 4, 2)
    assert all(ended.codes)
    for error in ended.errors:
        assert "RunError: rank 2 would not run the others' plan" in error


def test_when_a_rank_dies_the_others_end_and_name_it(ranks):
    ended = ranks.run(programs.killed_in_a_step, 4, 2)
    assert ended.codes[2] == -9
    for rank in (0, 1, 3):
        assert ended.codes[rank] not in (0, -9)
        assert "rank 2 was lost" in ended.errors[rank]
