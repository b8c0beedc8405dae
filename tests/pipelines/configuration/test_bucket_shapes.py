"""Buckets that do not divide into latents and patches are refused with the configuration, by their key."""

from pathlib import Path

import pytest

from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig

CONFIGS = Path(__file__).parents[3] / "pipelines" / "configs"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (
            "finetune_wan_lora.yaml",
            "stream.buckets.frames=[1, 81, 16]",
            [r"stream\.buckets\.frames: 16 frames", "1 \\+ a multiple of 4, such as 13 or 17"],
        ),
        (
            "finetune_wan_lora.yaml",
            "stream.buckets.sizes=[[480, 832], [480, 840]]",
            [r"stream\.buckets\.sizes: 480x840 pixels", "tokens of 16x16", "480x832"],
        ),
        (
            "finetune_wan_lora.yaml",
            "stream.curriculum=[{until_step: 5, frames: [1]}, {frames: [5, 7]}]",
            [r"stream\.curriculum\.1\.frames: 7 frames", "such as 5 or 9"],
        ),
        (
            "finetune_wan_lora.yaml",
            "stream.curriculum=[{until_step: 5, sizes: [[24, 32]]}, {}]",
            [r"stream\.curriculum\.0\.sizes: 24x32 pixels", "tokens of 16x16"],
        ),
    ],
)
def test_a_shape_that_no_run_could_train_is_refused_before_it(
    file: str, change: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(TrainRunConfig, CONFIGS / file, ["dataset=x", change])
    for word in words:
        assert caught.match(word)


def test_patches_of_several_latent_frames_need_whole_ones() -> None:
    changes = ["dataset=x", "train.model.patch=[2, 2, 2]", "stream.buckets.compression.frames=4"]
    config = resolve(TrainRunConfig, CONFIGS / "train.yaml", [*changes, "stream.buckets.frames=[3, 7]"])
    assert config.stream.buckets.frames == (3, 7)
    with pytest.raises(UsageError, match=r"frames: 5 frames .* take 3 \+ a multiple of 4, such as 3 or 7"):
        resolve(TrainRunConfig, CONFIGS / "train.yaml", [*changes, "stream.buckets.frames=[5]"])


def test_a_tokenizer_takes_whole_latents_alone() -> None:
    with pytest.raises(UsageError, match=r"stream\.buckets\.frames: 6 frames"):
        resolve(VaeRunConfig, CONFIGS / "finetune_vae.yaml", ["dataset=x", "stream.buckets.frames=[5, 6]"])


def test_captions_are_dropped_by_the_loader_or_in_training() -> None:
    changes = ["dataset=x", "stream.caption_dropout=0.2"]
    with pytest.raises(
        UsageError, match=r"train\.objective\.caption_dropout=0\.1 drops some of the rest: set one"
    ):
        resolve(TrainRunConfig, CONFIGS / "train.yaml", changes)
    changes = [*changes, "train.objective.caption_dropout=0", "stream.captions={short: 0.3, default: 0.7}"]
    config = resolve(TrainRunConfig, CONFIGS / "train.yaml", changes)
    assert (config.stream.caption_dropout, config.stream.captions) == (0.2, {"short": 0.3, "default": 0.7})
    config = resolve(TrainRunConfig, CONFIGS / "train.yaml", ["dataset=x", "stream.captions.long=2"])
    assert config.stream.captions == {"long": 2}
