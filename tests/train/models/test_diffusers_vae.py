"""Published VAEs as tokenizers: their pipelines' latents, from clips of any size that fits."""

import pytest
import torch

from reelweave.loader.buckets.tokens import visual_tokens
from reelweave.loader.errors import UsageError
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.published.vae import DiffusersVAE
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.generate import generate
from tests.train.models.diffusers_vaes import FAMILIES, publish, tokenizer
from tests.train.models.family_checks import FiveFrames
from tests.train.published import drawn, run_config

ALL = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def video(frames=5, height=32, width=48, batch=2):
    return torch.rand(batch, 3, frames, height, width, generator=torch.Generator().manual_seed(0)) * 2 - 1


@ALL
def test_latents_have_the_size_that_the_loader_counts_with(tmp_path, family):
    made = tokenizer(tmp_path, family)
    for size in ((1, 32, 48), (5, 32, 32), (9, 48, 32))[: 2 if family == "cosmos" else 3]:
        latents = made.encode(video(*size))
        assert latents.shape == (2, made.channels, *made.latent_size(size))
        assert latents.dtype == torch.float32
        config = TrainConfig(tokenizer=made.config)  # our DiT's patch is 1 x 2 x 2
        frames, rows, columns = made.latent_size(size)
        expected = frames * -(-rows // 2) * -(-columns // 2)
        assert visual_tokens(*size, config.compression) == expected
        if family != "cogvideox" or frames % 2:
            assert made.decode(latents).shape == (2, 3, *size)


@pytest.mark.parametrize("family", ["wan", "cogvideox", "hunyuan"])
def test_its_grid_has_the_tiles_that_it_cuts(tmp_path, family):
    made = tokenizer(tmp_path, family, tiling=True)
    name, step = ("tile_overlap_factor", 0.25) if family == "cogvideox" else ("tile_sample_stride", 24)
    sizes = {f"tile_sample_min_{side}": 32 for side in ("height", "width")}
    made.vae.enable_tiling(**sizes, **{f"{name}_{side}": step for side in ("height", "width")})
    seen = []
    made.vae.encoder.register_forward_pre_hook(lambda _, given: seen.append([*given[0].shape[2:]]))
    frames = 33 if family == "hunyuan" else 1  # others cut frames off one after the other, within a tile
    made.encode(video(frames, 32, 80, batch=1))
    assert seen == made.tile_grid.tiles(frames, 32, 80).tolist()
    assert len(seen) == (3 * 2 if family == "hunyuan" else 2) * 4
    assert tokenizer(tmp_path, family).tile_grid is None


@ALL
def test_latents_are_those_that_the_familys_pipeline_decodes(tmp_path, family):
    made, vae, x = (
        tokenizer(tmp_path, family),
        publish(tmp_path, family),
        video(1 if family == "cogvideox" else 5),
    )
    with torch.no_grad():
        raw = vae.encode(x).latent_dist.mode()
    latents, theirs = made.encode(x), vae.config
    if family.startswith("wan"):  # WanPipeline: latents / (1 / std) + mean
        mean, std = (
            torch.tensor(values).view(1, 4, 1, 1, 1) for values in (theirs.latents_mean, theirs.latents_std)
        )
        restored = latents / (1.0 / std) + mean
    elif family == "cosmos":  # CosmosTextToWorldPipeline: latents * std / sigma_data + mean, by latent frame
        mean, std = (
            torch.tensor(v).view(1, 4, -1, 1, 1)[:, :, :2] for v in (theirs.latents_mean, theirs.latents_std)
        )
        restored = latents * std / 0.5 + mean
    else:
        restored = latents / theirs.scaling_factor
    torch.testing.assert_close(restored, raw, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(latents, raw, rtol=1e-2, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(made.decode(latents), vae.decode(raw).sample, rtol=1e-3, atol=1e-4)


@ALL
def test_a_clip_has_the_same_latents_every_time_and_with_other_clips(tmp_path, family):
    made, x = tokenizer(tmp_path, family), video()
    assert torch.equal(made.encode(x), made.encode(x))
    torch.testing.assert_close(made.encode(x[1:]), made.encode(x)[1:], rtol=1e-4, atol=1e-5)
    sliced = DiffusersVAE(made.config.model_copy(update={"slicing": True, "tiling": True}))
    torch.testing.assert_close(sliced.encode(x), made.encode(x), rtol=1e-4, atol=1e-5)


def test_nothing_in_a_vae_is_trained_and_nothing_is_kept_for_a_backward(tmp_path):
    made = tokenizer(tmp_path, "wan")
    assert not any(parameter.requires_grad for parameter in made.parameters())
    assert not made.encode(video().requires_grad_()).requires_grad


def test_bytes_are_taken_as_minus_one_to_one(tmp_path):
    made = tokenizer(tmp_path, "wan")
    bytes_ = (video() * 127.5 + 127.5).round().to(torch.uint8)
    torch.testing.assert_close(made.encode(bytes_), made.encode(bytes_.float() / 127.5 - 1))


def test_what_does_not_fit_is_refused_with_the_way_out(tmp_path):
    made = tokenizer(tmp_path, "wan")
    with pytest.raises(UsageError, match=r"8 frames.*5 or 9"):
        made.encode(video(frames=8))
    with pytest.raises(UsageError, match=r"36x48.*multiple of 8"):
        made.encode(video(height=36))
    with pytest.raises(
        UsageError, match=r"set tokenizer\.frames=4, tokenizer\.height=8 and tokenizer\.width=8"
    ):
        tokenizer(tmp_path, "wan", height=16)
    with pytest.raises(UsageError, match=r"9 frames are more than the 5"):
        tokenizer(tmp_path, "cosmos").encode(video(frames=9))
    made = tokenizer(tmp_path, "cogvideox")
    with pytest.raises(UsageError, match=r"1 \+ a multiple of 8 frames"):
        made.decode(made.encode(video(frames=5)))


def test_a_part_that_is_no_vae_is_refused(tmp_path):
    drawn("wan").save_pretrained(tmp_path / "vae")
    with pytest.raises(UsageError, match="WanTransformer3DModel; supported are AutoencoderKLWan"):
        DiffusersVAE(DiffusersVAEConfig(name=str(tmp_path)))
    with pytest.raises(UsageError, match=r"tokenizer\.name.*neither"):
        DiffusersVAE(DiffusersVAEConfig(name=str(tmp_path), subfolder="x"))


def test_a_published_pipeline_is_adapted_and_sampled_from(tmp_path):
    """Wan as its folder is: VAE, transformer and text encoder of one pipeline."""
    publish(tmp_path, "wan")
    config = run_config(
        tmp_path,
        "wan",
        steps=4,
        channels=4,
        lora={"rank": 2},
        tokenizer={"kind": "diffusers", "name": str(tmp_path)},
    )

    result = Trainer(config, FiveFrames(), tmp_path / "run").run()
    assert result.steps == 4
    bundle = Bundle(config)
    assert bundle.tokenizer.latent_size((5, 16, 16)) == (2, 2, 2)
    made = generate(bundle, config.losses, SampleConfig(frames=5, height=16, width=16, steps=2), ["a wave"])
    assert made.shape == (1, 3, 5, 16, 16)
