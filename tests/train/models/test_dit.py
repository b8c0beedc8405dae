import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiTConfig
from reelweave.train.kernels.qk_norm.rotary import rotate
from reelweave.train.models.attention.patches import cut, join
from reelweave.train.models.attention.positions import rotary_angles
from reelweave.train.models.dit import DiT

CONFIG = DiTConfig(hidden=32, heads=2, layers=2, patch=(1, 2, 2))


def model(config: DiTConfig = CONFIG, trained: bool = True) -> DiT:
    """A DiT of 6 channels; unless trained, with the zeros it starts with."""
    torch.manual_seed(0)
    dit = DiT(config, channels=6, text_width=5)
    if trained:
        for parameter in dit.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return dit


def inputs(size=(3, 4, 6), batch=2, text=4):
    torch.manual_seed(1)
    mask_BM = torch.ones(batch, text, dtype=torch.bool)
    return torch.randn(batch, 6, *size), torch.rand(batch), torch.randn(batch, text, 5), mask_BM


@pytest.mark.parametrize("size", [(1, 2, 2), (3, 4, 6), (5, 8, 2)])
def test_one_model_takes_latents_of_any_size(size):
    assert model()(*inputs(size)).shape == (2, 6, *size)


def test_an_untrained_model_predicts_zero():
    assert not model(trained=False)(*inputs()).any()


def test_an_untrained_block_is_the_identity():
    dit = model(trained=False)
    x_BLD, rotation = torch.randn(2, 6, 32), (torch.ones(6, 8), torch.zeros(6, 8))
    out = dit.blocks[0](x_BLD, torch.randn(2, 32), torch.randn(2, 4, 32), torch.ones(2, 4).bool(), rotation)
    assert torch.equal(out, x_BLD)


def test_masked_text_does_not_count():
    x, t, context, mask = inputs()
    mask[:, 2:] = False
    changed = context.clone()
    changed[:, 2:] = 100
    torch.testing.assert_close(model()(x, t, context, mask), model()(x, t, changed, mask))
    torch.testing.assert_close(model()(x, t, context, mask), model()(x, t, context[:, :2], mask[:, :2]))


@pytest.mark.parametrize("what", ["text", "time"])
def test_the_conditioning_changes_the_prediction(what):
    x, t, context, mask = inputs()
    other = (x, t, context + 1, mask) if what == "text" else (x, 1 - t, context, mask)
    assert not torch.allclose(model()(x, t, context, mask), model()(*other), atol=1e-3)


def test_samples_of_a_batch_do_not_mix():
    x, t, context, mask = inputs()
    alone = model()(x[:1], t[:1], context[:1], mask[:1])
    torch.testing.assert_close(model()(x, t, context, mask)[:1], alone, atol=1e-5, rtol=1e-5)


def test_equal_patches_at_different_places_are_told_apart():
    _, t, context, mask = inputs()
    x = torch.zeros(2, 6, 3, 4, 6)
    x[:, :, 0, :2, :2] = torch.randn(2, 6, 2, 2)
    out = model()(x, t, context, mask)
    assert not torch.allclose(out[:, :, 1, :2, :2], out[:, :, 2, 2:, 4:], atol=1e-4)


def test_every_weight_gets_a_gradient():
    dit = model()
    dit(*inputs()).square().sum().backward()
    assert [name for name, p in dit.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_latents_that_do_not_divide_into_patches_are_refused():
    with pytest.raises(UsageError, match="3x5x6"):
        model()(*inputs((3, 5, 6)))


def test_join_inverts_cut():
    x = torch.randn(2, 3, 4, 6, 8)
    assert cut(x, (2, 3, 4)).shape == (2, 2, 2, 2, 3, 24)
    assert torch.equal(join(cut(x, (2, 3, 4)), (2, 3, 4)), x)


def test_rotary_scores_depend_on_distance_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 16)
    angles = rotary_angles((4, 4, 4), 16, torch.device("cpu")).reshape(4, 4, 4, 8)

    def score(at_q, at_k):
        return rotate(q, angles[at_q].cos(), angles[at_q].sin()) @ rotate(
            k, angles[at_k].cos(), angles[at_k].sin()
        )

    torch.testing.assert_close(score((0, 0, 1), (2, 1, 0)), score((1, 2, 3), (3, 3, 2)))
    for moved in ((3, 1, 0), (2, 2, 0), (2, 1, 1)):
        assert abs(score((0, 0, 1), (2, 1, 0)) - score((0, 0, 1), moved)) > 1e-3
