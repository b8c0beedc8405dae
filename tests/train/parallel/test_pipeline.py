"""A pipeline of processes makes the step of one whole model, from microbatches of any shapes and number."""

import pytest

from reelweave.train.parallel.pipeline.stage import places
from tests.thorough import but, thorough
from tests.train.parallel import stages
from tests.train.ranks import Ranks


def well(ranks: Ranks, function, size: int, *arguments) -> None:
    ended = ranks.run(function, size, *arguments)
    assert ended.codes == [0] * size, "\n".join(ended.errors)


@pytest.mark.parametrize("model", but(("mmdit",), stages.MODELS, ("dit",)))
def test_microbatches_and_packs_of_any_shapes_make_the_step_of_a_whole_model(ranks: Ranks, model):
    well(ranks, stages.same_step, 3, model, [1, 3, 2, 3, 1], "1f1b", True)


@pytest.mark.parametrize(
    ("size", "how"),
    [
        pytest.param(2, ("dit", [2, 1, 1], "gpipe"), id="gpipe"),
        pytest.param(4, ("mmdit", [3]), id="one-microbatch", marks=thorough),
        pytest.param(2, ("st_dit", [1, 2], "1f1b", False, True), id="adapters", marks=thorough),
    ],
)
def test_so_it_is_with_another_schedule_few_microbatches_and_adapters(ranks: Ranks, size, how):
    well(ranks, stages.same_step, size, *how)


def test_a_stage_keeps_activations_of_as_many_microbatches_as_there_are_stages_behind_it(ranks: Ranks):
    well(ranks, stages.kept, 3, "1f1b", 5, [3, 2, 1])
    well(ranks, stages.kept, 3, "gpipe", 5, [5, 5, 5])


@thorough
def test_bfloat16_changes_no_bit_and_casts_no_weight_twice(ranks: Ranks):
    well(ranks, stages.half, 2)


@pytest.mark.parametrize(("stages_", "blocks"), [(1, 3), (2, 5), (4, 4), (4, 30), (7, 28)])
def test_every_block_is_on_one_stage_and_the_first_has_no_more_than_any_other(stages_, blocks):
    held = [places(stage, stages_, blocks) for stage in range(stages_)]
    assert [place for one in held for place in one] == list(range(blocks))
    counts = [len(one) for one in held]
    assert max(counts) - min(counts) <= 1
    assert (counts[0], counts[-1]) == (min(counts), max(counts))
