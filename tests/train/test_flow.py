import pytest
import torch

from train.config import FlowConfig
from train.objectives.flow import draw, interpolate, sample_losses

SHAPE = (2, 3, 4, 4)


def test_a_sample_draws_the_same_in_any_batch():
    both = draw(FlowConfig(), 7, ["a", "b"], [3, 3], SHAPE)
    alone = draw(FlowConfig(), 7, ["b"], [3], SHAPE)
    assert torch.equal(both.noise[1], alone.noise[0])
    assert both.times[1] == alone.times[0]
    assert both.dropped[1] == alone.dropped[0]


@pytest.mark.parametrize(("seed", "key", "passed"), [(8, "a", 3), (7, "b", 3), (7, "a", 4)])
def test_another_seed_key_or_pass_draws_anew(seed, key, passed):
    first, other = draw(FlowConfig(), 7, ["a"], [3], SHAPE), draw(FlowConfig(), seed, [key], [passed], SHAPE)
    assert not torch.equal(first.noise, other.noise)
    assert first.times != other.times


def test_draws_follow_their_distributions():
    config = FlowConfig(time_mean=0.5, time_std=0.8, caption_dropout=0.3)
    drawn = draw(config, 0, [str(i) for i in range(4000)], [0] * 4000, (4,))
    logits = torch.logit(drawn.times)
    assert abs(logits.mean() - 0.5) < 0.05
    assert abs(logits.std() - 0.8) < 0.05
    assert abs(sum(drawn.dropped) / 4000 - 0.3) < 0.03
    assert abs(drawn.noise.mean()) < 0.03
    assert abs(drawn.noise.std() - 1) < 0.03


def test_the_path_runs_from_data_to_noise_at_its_velocity():
    clean, noise = torch.randn(2, 3, *SHAPE)
    start, velocity = interpolate(clean, noise, torch.zeros(3))
    end, _ = interpolate(clean, noise, torch.ones(3))
    middle, _ = interpolate(clean, noise, torch.full((3,), 0.25))
    assert torch.equal(start, clean)
    assert torch.equal(end, noise)
    torch.testing.assert_close(middle, clean + 0.25 * velocity)


def test_the_loss_is_each_samples_mean_square():
    prediction, velocity = torch.zeros(2, *SHAPE), torch.ones(2, *SHAPE)
    velocity[1] = 3
    assert sample_losses(prediction, velocity).tolist() == [1, 9]
