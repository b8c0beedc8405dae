import json

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.vae import VaeModelConfig
from reelweave.train.models.published.families.registry import VAES
from reelweave.train.vae.network import VideoVae
from tests.train.vae.tiny import COSMOS, WAN, publish

LEVELS = {"dim_mult": [1, 2, 2], "temperal_downsample": [True, True], "scale_factor_spatial": 4}
DEEPER = {"dim_mult": [1, 2, 2, 2], "temperal_downsample": [True, True, False], "scale_factor_spatial": 8}
RESIDUAL = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12}
CASES = {
    "wan 2.1": (WAN, LEVELS, DEEPER, 8),
    "wan 2.2": (
        WAN,
        LEVELS | RESIDUAL | {"scale_factor_spatial": 8},
        DEEPER | {"scale_factor_spatial": 16},
        16,
    ),
    "cosmos": (COSMOS, {}, {"spatial_compression_ratio": 8}, 8),
}


def extended(folder, case):
    """The published VAE, and the one of the changed architecture."""
    kind, settings, changes, side = CASES[case]
    published = publish(folder, kind, **settings)
    (folder / "changed.json").write_text(json.dumps({"_class_name": kind} | changes))
    config = VaeModelConfig(
        name=str(folder), architecture=folder / "changed.json", frames=4, height=side, width=side
    )
    return published, VideoVae(config, seed=1)


def changed_to(folder, kind=WAN, settings=LEVELS, **changes):
    publish(folder, kind, **settings)
    (folder / "changed.json").write_text(json.dumps(changes))
    return VideoVae(VaeModelConfig(name=str(folder), architecture=folder / "changed.json"), seed=1)


@pytest.mark.parametrize("case", CASES)
def test_an_architecture_that_compresses_twice_as_much_begins_with_the_published_weights(tmp_path, case):
    published, made = extended(tmp_path, case)
    before, now, found = published.state_dict(), made.vae.state_dict(), made.initialisation
    assert sorted([*found.taken, *found.new]) == sorted(now)
    assert len(found.taken) > 0.8 * len(before)
    of = VAES[type(published).__name__](published).published_name(made.vae.config)
    for name in found.taken:
        assert torch.equal(now[name], before[of(name)]), name
    # What is new is that of the new blocks, and where one of them hands over another number of channels.
    handed_over = "decoder.up_blocks.1.resnets.0."
    added = {
        "wan 2.1": ("encoder.down_blocks.5.", "encoder.down_blocks.6.", "decoder.up_blocks.0.", handed_over),
        "wan 2.2": ("encoder.down_blocks.2.downsampler.", "encoder.down_blocks.3.", "decoder.up_blocks.0."),
        "cosmos": ("encoder.down_blocks.1.downsamplers.", "decoder.up_blocks.0.upsamplers."),
    }[case]
    assert all(name.startswith(added) for name in found.new), found.new
    assert all(any(name.startswith(prefix) for name in found.new) for prefix in added)
    assert set(found.left_over) <= {
        f"decoder.up_blocks.0.resnets.0.{name}" for name in ("norm1.gamma", "conv1.weight")
    }


def test_the_published_decoder_runs_behind_the_added_block(tmp_path):
    """What the old up_blocks made of a feature map, the shifted ones make of it: numbers are not mixed up."""
    published, made = extended(tmp_path, "wan 2.2")
    x = torch.randn(1, 8, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for old, new in zip(published.decoder.up_blocks, made.vae.decoder.up_blocks[1:], strict=True):
            outcomes = [
                block(x, feat_cache=[None] * 99, feat_idx=[0], first_chunk=True) for block in (old, new)
            ]
            torch.testing.assert_close(*outcomes)
            x = outcomes[0]


@pytest.mark.parametrize("case", CASES)
def test_a_later_frame_does_not_change_earlier_latents_after_the_extension(tmp_path, case):
    _, made = extended(tmp_path, case)
    side = made.compression[1]
    video = torch.rand(1, 3, 9, 2 * side, 2 * side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    later = video.clone()
    later[:, :, 5:] = -later[:, :, 5:]
    with torch.no_grad():
        whole, other = made.encode(video).mean, made.encode(later).mean
        assert whole.shape[2:] == (3, 2, 2)
        torch.testing.assert_close(other[:, :, :2], whole[:, :, :2])
        assert not torch.allclose(other[:, :, 2], whole[:, :, 2])
        back, other_back = made.decode(whole), made.decode(other)
        torch.testing.assert_close(other_back[:, :, :5], back[:, :, :5])


def test_layers_of_a_level_keep_their_places_when_levels_get_more_of_them(tmp_path):
    publish(tmp_path, **LEVELS)
    (tmp_path / "changed.json").write_text(json.dumps({"num_res_blocks": 2}))
    config = VaeModelConfig(
        name=str(tmp_path), architecture=tmp_path / "changed.json", frames=4, height=4, width=4
    )
    found = VideoVae(config, seed=1).initialisation
    # Level 0 was layers 0 and 1 (residual, resample), and is 0 to 2 now; the second residual layer is new.
    assert any(name.startswith("encoder.down_blocks.1.conv1") for name in found.new)
    assert any(name.startswith("encoder.down_blocks.2.time_conv") for name in found.taken)
    assert not found.left_over


def test_new_weights_depend_on_the_seed_alone(tmp_path):
    _, first = extended(tmp_path, "wan 2.1")
    torch.manual_seed(5)
    _, again = extended(tmp_path, "wan 2.1")
    other = VideoVae(first.config, seed=2)
    name = "decoder.up_blocks.0.resnets.0.conv1.weight"
    weights = [vae.vae.state_dict()[name] for vae in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"dim_mult": [1, 1, 2, 2], "temperal_downsample": [False, True, True]},
            "must come behind the published",
        ),
        ({"dim_mult": [1, 2, 2, 2], "temperal_downsample": [True, True, True]}, "cannot halve time"),
        ({"dim_mult": [1, 2, 2, 2]}, "temperal_downsample must have 3 values, not 2"),
        (DEEPER | {"scale_factor_spatial": 4}, "scale_factor_spatial is 4, but its levels make it 8"),
        ({"dim_mults": [1, 2, 2, 2]}, r"knows no dim_mults; did you mean dim_mult\?"),
        ({"is_residual": True}, "changes is_residual"),
        ({"_class_name": "AutoencoderKLCosmos"}, "they must be of one class"),
        ({}, r"set model\.frames=4, model\.height=4 and model\.width=4"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changes, said):
    with pytest.raises(UsageError, match=said):
        changed_to(tmp_path, **changes)


def test_families_whose_blocks_would_change_their_meaning_are_refused(diffusers, tmp_path):
    blocks = {
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "block_out_channels": (4,) * 4,
    }
    longer = {"block_out_channels": [4] * 5}
    for kind in (diffusers.AutoencoderKLCogVideoX, diffusers.AutoencoderKLHunyuanVideo):
        torch.manual_seed(0)
        kind(**blocks).save_pretrained(tmp_path / "vae")
        (tmp_path / "changed.json").write_text(json.dumps(longer))
        config = VaeModelConfig(name=str(tmp_path), architecture=tmp_path / "changed.json")
        with pytest.raises(UsageError, match="changes block_out_channels, by which blocks"):
            VideoVae(config, 0)


def test_factors_that_the_blocks_do_not_make_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"claims to compress by \(4, 16, 16\)"):
        changed_to(tmp_path, COSMOS, {}, spatial_compression_ratio=16)
