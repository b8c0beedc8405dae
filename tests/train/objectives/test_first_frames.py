"""Image to video in training: what the model is given of a clip, and that it changes nothing else."""

import dataclasses

import pytest
import torch

from reelweave.loader.batch import Batch, Pack
from reelweave.loader.errors import UsageError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.objectives.draw import draw
from reelweave.train.objectives.first_frames import first_frame_condition
from reelweave.train.step.losses import losses
from tests.train.clips import ClipStream, tiny_config

CPU = torch.device("cpu")
KEYS, PASSES = [f"clip{number}" for number in range(400)], [0] * 400


def configured(kind="dit", **given) -> TrainConfig:
    plain = tiny_config()
    model = {**plain.model.model_dump(), "kind": kind}
    return TrainConfig.model_validate({**plain.model_dump(), "model": model, "first_frames": given or None})


def awake(config) -> Bundle:
    """A bundle whose gates are open, so that every input matters."""
    bundle = Bundle(config)
    torch.manual_seed(0)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return bundle


def test_the_condition_holds_given_frames_and_their_mask_and_nothing_else():
    clean = torch.randn(3, 2, 4, 3, 5, generator=torch.Generator().manual_seed(0))
    found = first_frame_condition(clean, [0, 1, 3])
    assert found.shape == (3, 3, 4, 3, 5)
    for sample, given in zip(range(3), [0, 1, 3], strict=True):
        assert torch.equal(found[sample, 1:, :given], clean[sample, :, :given])
        assert bool((found[sample, 0, :given] == 1).all())
        assert not found[sample, :, given:].any()
    hidden = clean.clone()
    hidden[:, :, 3:] = torch.nan  # what is not given is not read
    assert torch.equal(first_frame_condition(hidden, [0, 1, 3]), found)


def test_given_frames_are_drawn_behind_all_else_and_leave_something_to_make():
    plain = draw(0.1, 7, KEYS, PASSES, 4)
    found = draw(0.1, 7, KEYS, PASSES, 4, FirstFramesConfig(max_latent_frames=6, dropout=0.25))
    assert torch.equal(plain.normals, found.normals)
    assert plain.dropped == found.dropped
    assert set(plain.num_given) == {0}
    shares = [found.num_given.count(number) / len(KEYS) for number in range(5)]
    # 6 numbers, of which 3 to 6 become 3 of 4 frames.
    assert shares == pytest.approx([0.25, 0.125, 0.125, 0.5, 0], abs=0.07)
    still = draw(0.1, 7, KEYS, PASSES, 1, FirstFramesConfig(dropout=0))
    assert set(still.num_given) == {0}


@pytest.mark.parametrize("kind", ["dit", "st_dit", "mmdit"])
def test_a_sample_has_the_same_loss_in_a_batch_and_in_a_pack(kind):
    config = configured(kind, max_latent_frames=1, dropout=0.3)
    bundle, batch = awake(config), ClipStream().microbatch(0)
    with torch.no_grad():
        each = losses(bundle, config, batch, CPU).each
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(Batch)}
        several = len(batch.keys)
        pack = Pack(
            **fields,
            buckets=(batch.bucket,) * several,
            lengths=(batch.length,) * several,
            videos=tuple(batch.video_BCTHW),
        )
        packed = losses(bundle, config, pack, CPU).each
    torch.testing.assert_close(packed, each, rtol=1e-5, atol=0)


def test_the_loss_depends_on_the_given_frame():
    batch = ClipStream().microbatch(0)
    given, dropped = configured(dropout=0.0), configured(dropout=1.0)
    bundle = awake(given)
    with torch.no_grad():
        with_frame, without = (losses(bundle, config, batch, CPU).each for config in (given, dropped))
        # The condition's channels are the last ones of every patch.
        bundle.dit.embed.weight[:, bundle.dit.patch_values :] = 0
        unseen = [losses(bundle, config, batch, CPU).each for config in (given, dropped)]
    assert bool((with_frame != without).all())
    assert torch.equal(*unseen)


def test_flops_count_the_condition_in_the_embedding_alone():
    plain, given = Bundle(configured()).dit, Bundle(configured(dropout=0.1)).dit
    size = (2, 4, 4)
    rows = plain.tokens(size)
    more = given.embed.in_features - plain.embed.in_features
    assert more == (1 + plain.channels) * plain.patch_values // plain.channels
    assert (
        given.flops(size, 3).forward - plain.flops(size, 3).forward == 2 * rows * more * plain.config.hidden
    )


def test_a_published_model_without_such_channels_is_refused(tmp_path):
    from tests.train.published import publish

    for variant in ("cosmos", "wan"):
        config = publish(tmp_path / variant, variant)
        with pytest.raises(UsageError, match=r"first_frames"):
            build_denoiser(config, 4, 8, FirstFramesConfig())
