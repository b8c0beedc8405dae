import pytest

from reelweave.train.objectives.draw import draw, draw_dropped


def test_a_sample_draws_the_same_in_any_batch():
    both = draw(0.1, 7, ["a", "b"], [3, 3], 3)
    alone = draw(0.1, 7, ["b"], [3], 3)
    assert both.normals[1] == alone.normals[0]
    assert both.dropped[1] == alone.dropped[0]


@pytest.mark.parametrize(("seed", "key", "passed"), [(8, "a", 3), (7, "b", 3), (7, "a", 4)])
def test_another_seed_key_or_pass_draws_anew(seed, key, passed):
    assert draw(0.1, 7, ["a"], [3], 3).normals != draw(0.1, seed, [key], [passed], 3).normals


def test_draws_follow_their_distributions():
    drawn = draw(0.3, 0, [str(i) for i in range(4000)], [0] * 4000, 1)
    assert abs(drawn.normals.mean()) < 0.05
    assert abs(drawn.normals.std() - 1) < 0.05
    assert abs(sum(drawn.dropped) / 4000 - 0.3) < 0.03


def test_dropped_captions_are_known_without_the_rest():
    drawn = [str(i) for i in range(100)], [2] * 100
    assert draw_dropped(0.3, 5, *drawn) == draw(0.3, 5, *drawn, 1).dropped
