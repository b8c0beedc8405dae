"""LoRA recipes of published families: whole, within their budgets, and as the families were trained."""

from pathlib import Path
from typing import Any

import pytest

from reelweave.loader.buckets.tokens import visual_tokens
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.kinds import EXAMPLES
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.train.models.build import build_denoiser
from reelweave.train.sampling.trained.published import compare_with_published
from tests.train.published import drawn
from tests.train.sampling.test_published_differences import schedule

FLOW = "FlowMatchEulerDiscreteScheduler"
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "wan-lora": ("wan", FLOW, {"shift": 3.0}),
    "wan22-5b-lora": ("wan", FLOW, {"shift": 5.0}),
    "wan22-t2v-lora": ("wan", FLOW, {"shift": 5.0}),
    "hunyuan-lora": ("hunyuan, distilled", FLOW, {"shift": 7.0}),
    "cogvideox-lora": (
        "cogvideox, rotary",
        "CogVideoXDDIMScheduler",
        {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True, "snr_shift_scale": 1.0},
    ),
    "cosmos1-lora": ("cosmos", "EDMEulerScheduler", {"sigma_data": 0.5}),
}
"""Family and published scheduler of each recipe."""


def configured(name: str) -> TrainRunConfig:
    return resolve(TrainRunConfig, EXAMPLES[name].file, ["dataset=x"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_longest_clip_and_its_text_fit_the_budgets(name: str) -> None:
    config = configured(name)
    buckets = config.stream.buckets
    clips = [
        int(visual_tokens(frames, height, width, buckets.compression))
        for frames in buckets.frames
        for height, width in buckets.sizes
    ]
    longest = max(clips) + buckets.max_text_tokens
    assert longest <= buckets.memory_tokens <= 1.1 * longest
    assert longest**2 <= buckets.compute_budget <= 1.2 * longest**2
    if config.validation:
        sampled = config.validation
        assert sampled.before_first_step
        assert sampled.frames in buckets.frames
        assert (sampled.height, sampled.width) in buckets.sizes


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_differs_from_how_the_family_was_trained(name: str, tmp_path: Path) -> None:
    config = configured(name).train
    variant, scheduler, settings = FAMILIES[name]
    special = {"max_text_seq_length": 226} if variant.startswith("cogvideox") else {}
    drawn(variant, **special).save_pretrained(tmp_path / "transformer")
    schedule(tmp_path, scheduler, **settings)
    model = config.model.model_copy(update={"name": str(tmp_path), "dtype": "float32"})
    modules = config.modules._replace(model=model, lora=None)
    dit = build_denoiser(model, 4, 8)
    assert compare_with_published(modules, dit, new=True) == []
    rate = type(dit).frame_rate(model, {"in_channels": 48 if "5b" in name else 16})
    assert configured(name).stream.buckets.sampling.fps == rate
