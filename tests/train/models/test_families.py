"""The registry of published families: what every entry says, and the page that shows it."""

import inspect
import math
import textwrap
from pathlib import Path

import pytest
import torch

from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.config.vae import VaeModelConfig
from reelweave.train.models.published.families.registry import FAMILIES, TRANSFORMERS, VAES
from reelweave.train.models.published.vae import DiffusersVAE
from reelweave.train.models.published.vae_base import PublishedVae
from reelweave.train.vae.network import VideoVae

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
OF_FAMILIES = ("train/models/published/families/", "train/kernels/patch/blocks/")
EACH = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.source)


def test_each_class_of_diffusers_has_one_family() -> None:
    assert len(TRANSFORMERS) == len(FAMILIES)
    assert {family.vae for family in FAMILIES} == set(VAES.values())


def test_no_other_code_asks_which_family_it_is() -> None:
    names = {*TRANSFORMERS, *VAES}
    asking = [
        f"{path}: {name}"
        for room in ("curate", "loader", "pipelines", "train")
        for file in (ROOT / room).rglob("*.py")
        if not (path := file.relative_to(ROOT).as_posix()).startswith(OF_FAMILIES)
        for name in names
        if name in file.read_text()
    ]
    assert asking == []


@EACH
def test_the_page_has_a_row_of_each(family) -> None:
    rows = [
        line
        for line in (DOCS / "finetune.md").read_text().splitlines()
        if line.startswith("|") and family.source in line
    ]
    assert len(rows) == 1, f"docs/finetune.md has no row of {family.source}"


@EACH
def test_what_plans_read_without_files_is_whole(family) -> None:
    for name, size in family.sizes.items():
        assert size.hidden % size.heads == 0, name


class MochiVae(PublishedVae):
    """VAE of Mochi 1."""

    source = "AutoencoderKLMochi"

    @property
    def compression(self) -> tuple[int, int, int]:
        side = math.prod(self.vae.config.spatial_expansions)
        return math.prod(self.vae.config.temporal_expansions), side, side

    def decode_tile(self, latents_BCTHW: torch.Tensor) -> torch.Tensor:
        decoded: torch.Tensor = self.vae.decoder(latents_BCTHW)[0][:, :, self.compression[0] - 1 :]
        return decoded


def test_a_vae_of_another_class_is_what_the_page_shows(tmp_path, monkeypatch) -> None:
    import diffusers

    assert textwrap.indent(inspect.getsource(MochiVae), "    ", str.strip) in (DOCS / "models.md").read_text()
    monkeypatch.setitem(VAES, MochiVae.source, MochiVae)
    torch.manual_seed(0)
    theirs = diffusers.AutoencoderKLMochi(
        encoder_block_out_channels=(32,) * 4,
        decoder_block_out_channels=(32,) * 4,
        latent_channels=4,
        layers_per_block=(1,) * 5,
        latents_mean=[0.1] * 4,
        latents_std=[2.0] * 4,
    ).eval()
    theirs.save_pretrained(tmp_path / "vae")
    factors = {"name": str(tmp_path), "frames": 6, "height": 8, "width": 8}
    video = torch.rand(1, 3, 7, 16, 24) * 2 - 1
    with torch.no_grad():
        raw = theirs.encode(video).latent_dist.mode()
        expected = theirs.decode(raw).sample
    tokenizer = DiffusersVAE(DiffusersVAEConfig(**factors))
    torch.testing.assert_close(tokenizer.encode(video), (raw - 0.1) / 2)
    torch.testing.assert_close(tokenizer.decode(tokenizer.encode(video)), expected)
    latents = tokenizer.encode(video)
    torch.testing.assert_close(tokenizer.finish(tokenizer.decode_tile(latents)), expected)
    trained = VideoVae(VaeModelConfig(**factors), seed=0)
    posterior = trained.encode(video)
    assert (posterior.mean.shape, trained.frames_step) == (raw.shape, 6)
    assert trained.decode(posterior.mean).shape == video.shape
