"""The frame rate that published families were trained at."""

import json
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig, DiTConfig
from reelweave.train.models.published.frame_rate import file_fps, frame_rate
from tests.train.models import wan_pipelines
from tests.train.published import publish

RATES = {
    "cogvideox": 8,
    "cogvideox 1.5": 16,
    "hunyuan": 24,
    "cosmos": 30,  # by its configuration
    "cosmos 2": 24,  # by its positions, without one
}
WANS = {"2.1 T2V": 16, "2.2 A14B T2V": 16, "2.2 A14B I2V": 16, "2.2 TI2V 5B": 24}


def test_families_have_the_rate_of_their_publication(tmp_path):
    found = {variant: frame_rate(publish(tmp_path / variant, variant)) for variant in RATES}
    for form in WANS:
        found[form] = frame_rate(DiffusersConfig(name=str(wan_pipelines.publish(tmp_path / form, form, 8))))
    assert found == RATES | WANS
    assert (frame_rate(DiTConfig()), file_fps(None), file_fps(29.97)) == (None, 24, 30)


def test_positions_of_cosmos_without_a_rate_are_those_at_its_default(tmp_path: Path) -> None:
    from diffusers.models.transformers.transformer_cosmos import CosmosRotaryPosEmbed

    positions = CosmosRotaryPosEmbed(hidden_size=12, max_size=(8, 8, 8), patch_size=(1, 2, 2))
    video, rate = torch.zeros(1, 4, 5, 8, 8), frame_rate(publish(tmp_path / "model", "cosmos 2"))
    for told, same in ((rate, True), (16, False)):
        pairs = zip(positions(video, fps=told), positions(video, fps=None), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs) == same


def test_an_exported_5b_without_a_pipeline_is_told_by_its_channels(tmp_path):
    described = {"_class_name": "WanTransformer3DModel", "in_channels": 48}
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert frame_rate(DiffusersConfig(name=str(tmp_path))) == 24
    with pytest.raises(UsageError, match=r"has neither transformer/config\.json nor config\.json"):
        (tmp_path / "config.json").rename(tmp_path / "other.json")
        frame_rate(DiffusersConfig(name=str(tmp_path)))
