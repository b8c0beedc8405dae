"""Another patch, and more channels, of a model's embedding and head."""

import pytest
import torch

from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.loop.stages.extension import EMBED, HEAD, HEAD_BIAS, Shape, extensions, shape_of
from reelweave.train.models.attention.patches import cut, join
from reelweave.train.models.encoders.tokenizer import PatchTransform, channels_within

HIDDEN = 5


def ends(shape):
    torch.manual_seed(0)
    columns = (shape.channels + shape.condition) * shape.values
    rows = shape.channels * shape.values
    return {
        EMBED: torch.randn(HIDDEN, columns),
        HEAD: torch.randn(rows, HIDDEN),
        HEAD_BIAS: torch.randn(rows),
    }


def extended(before, now, channels=None):
    rules, words = extensions(before, now, channels)
    return {
        name: rules[name](weight) if name in rules else weight for name, weight in ends(before).items()
    }, words


@pytest.mark.parametrize("patch", [(1, 4, 4), (2, 2, 2), (1, 3, 2)])
def test_a_larger_patch_of_an_enlarged_picture_is_embedded_as_the_smaller_was(patch):
    before, now = Shape((1, 2, 2), 3, 0), Shape(patch, 3, 0)
    new, words = extended(before, now)
    assert words == f"patch [1, 2, 2] resized to {list(patch)}"
    assert shape_of(new[EMBED].shape[1], len(new[HEAD]), patch) == now
    x_BCTHW = torch.randn(7, 3, 1, 2, 2)
    enlarged = torch.nn.functional.interpolate(x_BCTHW, patch, mode="trilinear")
    old_tokens, new_tokens = (
        cut(x, of).flatten(4).flatten(0, 3) for x, of in ((x_BCTHW, (1, 2, 2)), (enlarged, patch))
    )
    torch.testing.assert_close(new_tokens @ new[EMBED].T, old_tokens @ ends(before)[EMBED].T)
    # What the head predicts is enlarged alike.
    hidden = torch.randn(7, HIDDEN)

    def predicted(weights, of):
        values = hidden @ weights[HEAD].T + weights[HEAD_BIAS]
        return join(values.reshape(7, 1, 1, 1, 3, -1), of)

    small = torch.nn.functional.interpolate(predicted(ends(before), (1, 2, 2)), patch, mode="trilinear")
    torch.testing.assert_close(predicted(new, patch), small)


def test_a_smaller_patch_predicts_the_mean_of_the_larger_one():
    before, now = Shape((1, 2, 2), 3, 0), Shape((1, 1, 1), 3, 0)
    new, _ = extended(before, now)
    expected = ends(before)[HEAD].unflatten(0, (3, 4)).mean(1)
    torch.testing.assert_close(new[HEAD], expected)


def test_more_channels_change_nothing_of_what_was_computed():
    before, now = Shape((1, 2, 2), 3, 4), Shape((1, 2, 2), 5, 6)
    new, words = extended(before, now)
    assert words == (
        "2 more channels of latents begin with zeros and 2 more channels of first frames begin with zeros"
    )
    embed = ends(before)[EMBED].unflatten(1, (7, 4))
    grown = new[EMBED].unflatten(1, (11, 4))
    torch.testing.assert_close(grown[:, :3], embed[:, :3])
    torch.testing.assert_close(grown[:, 5:9], embed[:, 3:])  # mask and latents of first frames
    assert not grown[:, 3:5].any()
    assert not grown[:, 9:].any()
    assert not new[HEAD][12:].any()
    torch.testing.assert_close(new[HEAD][:12], ends(before)[HEAD])


def test_channels_keep_the_coefficients_that_they_were_trained_for():
    less, more = (PatchTransformConfig(frames=2, height=4, width=4, kept=kept) for kept in (4, 6))
    channels = channels_within(less, more)
    video_BCTHW = torch.randn(1, 3, 3, 8, 8)
    x, y = (PatchTransform(config).encode(video_BCTHW) for config in (less, more))
    torch.testing.assert_close(y[:, channels], x)
    assert channels != list(range(12))  # new ones lie between

    before, now = Shape((1, 1, 1), 12, 13), Shape((1, 1, 1), 18, 19)
    old, (new, _) = ends(before), extended(before, now, channels)
    # Noisy latents, a mask, and given latents: the embedding and the head compute what they did.
    embedded = torch.einsum(
        "oc,bcthw->bothw", new[EMBED], torch.cat([y, torch.ones_like(y[:, :1]), 2 * y], 1)
    )
    expected = torch.einsum(
        "oc,bcthw->bothw", old[EMBED], torch.cat([x, torch.ones_like(x[:, :1]), 2 * x], 1)
    )
    torch.testing.assert_close(embedded, expected)
    torch.testing.assert_close(new[HEAD][channels], old[HEAD])
    torch.testing.assert_close(new[HEAD_BIAS][channels], old[HEAD_BIAS])


def test_no_channels_are_dropped():
    with pytest.raises(ValueError, match="it has 3 channels of latents, and this run 2: none are dropped"):
        extensions(Shape((1, 2, 2), 3, 0), Shape((1, 2, 2), 2, 0))


@pytest.mark.parametrize(("columns", "rows"), [(13, 12), (12, 13), (16, 12)])
def test_other_layers_are_no_embedding_and_head(columns, rows):
    assert shape_of(columns, rows, (1, 2, 2)) is None
