import torch

from reelweave.loader.settings import first_difference
from reelweave.train.loop.resume import difference, seed_step
from tests.train.clips import tiny_config


def test_the_first_differing_key_is_named():
    saved, current = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "d": 4}
    assert first_difference(saved, saved) is None
    assert first_difference(saved, current) == "a.c was 2 and is 5 now"


def test_a_run_may_change_its_length_and_what_it_tells_and_keeps():
    saved = tiny_config(8).model_dump(mode="json")
    assert difference(saved, tiny_config(99, every_steps=3, keep_last=7, tensorboard=True)) is None
    assert difference(saved, tiny_config(8, lr=1.0)) == "optimizer.lr was 0.002 and is 1.0 now"


def test_a_key_that_came_later_counts_with_its_default():
    saved = tiny_config().model_dump(mode="json")
    del saved["max_nonfinite_steps"], saved["model"]["mlp_ratio"]
    assert difference(saved, tiny_config()) is None
    model = tiny_config().model.model_copy(update={"mlp_ratio": 3.0})
    other = tiny_config().model_copy(update={"model": model})
    assert difference(saved, other) == "model.mlp_ratio was 4.0 and is 3.0 now"


def test_a_run_from_before_the_denominator_goes_on_by_steps():
    saved = tiny_config().model_dump(mode="json")
    del saved["denominator"]
    assert difference(saved, tiny_config()) == "denominator was 'step' and is 'epoch' now"
    assert difference(saved, tiny_config().model_copy(update={"denominator": "step"})) is None


def test_a_key_that_is_gone_is_named():
    saved = tiny_config().model_dump(mode="json") | {"gone": 3}
    assert difference(saved, tiny_config()) == "gone was 3 and is None now"


def test_what_draws_without_a_seed_draws_the_same_after_a_resume():
    def drawn(*place):
        seed_step(*place)
        return torch.rand(4).tolist()

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    assert len({tuple(drawn(*place)) for place in ((1, 2, 3), (0, 2, 3), (1, 3, 3), (1, 2, 0))}) == 4
