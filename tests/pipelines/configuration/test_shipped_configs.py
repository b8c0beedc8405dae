"""The configuration files that come with the package are whole and true."""

from pathlib import Path

import pytest
import yaml

from reelweave.curate.config import CurateConfig
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.config_docs import (
    CURATE_HEAD,
    LATENTS_HEAD,
    TRAIN_HEAD,
    VAE_HEAD,
    page,
    yaml_file,
)
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig
from reelweave.pipelines.report.buckets import ReportConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.latents.config import LatentsConfig

CONFIGS = Path(__file__).parents[3] / "pipelines" / "configs"


def test_curate_yaml_says_every_default() -> None:
    values = yaml.safe_load((CONFIGS / "curate.yaml").read_text())
    assert values == CurateConfig().model_dump(mode="json")


def test_train_yaml_is_a_configuration() -> None:
    config = resolve(TrainRunConfig, CONFIGS / "train.yaml", ["dataset=x"])
    assert config.dataset == "x"


@pytest.mark.parametrize("name", ["finetune_wan_lora.yaml", "finetune_wan22_i2v_lora.yaml"])
def test_the_fine_tuning_of_wan_is_a_configuration(name: str) -> None:
    config = resolve(TrainRunConfig, CONFIGS / name, ["dataset=x"])
    clip = 21 * 30 * 52  # 81 frames of 480 x 832
    assert clip + 513 <= config.stream.buckets.memory_tokens
    assert (clip + 513) ** 2 <= (config.stream.buckets.compute_budget or 0)
    with pytest.raises(UsageError, match=r"stream\.regime pack.*takes no packs"):
        changes = ["stream.regime=pack", "stream.policy=balanced", "dataset=x"]
        resolve(TrainRunConfig, CONFIGS / name, changes)


def test_the_fine_tuning_of_a_tokenizer_is_a_configuration() -> None:
    file = CONFIGS / "finetune_vae.yaml"
    config = resolve(VaeRunConfig, file, ["dataset=x"])
    largest = max(height * width for height, width in config.stream.buckets.sizes) // 64
    assert (1 + max(config.stream.buckets.frames) // 4) * largest <= config.stream.buckets.memory_tokens
    for change, said in (
        ("train.model.height=16", r"stream\.buckets\.compression must be"),
        ("stream.buckets.sizes=[[8, 256]]", r"train\.losses\.gan needs frames of at least 24 pixels"),
        ("train.losses.mse=null", "mse or l1 must count from step 1 on"),
        ("train.model.new_only_steps=5", "new_only_steps needs architecture"),
    ):
        with pytest.raises(UsageError, match=said):
            resolve(VaeRunConfig, file, ["dataset=x", change])


def test_report_yaml_is_a_configuration() -> None:
    assert resolve(ReportConfig, CONFIGS / "report.yaml", []).buckets.memory_tokens > 0


def test_a_loader_that_counts_other_tokens_than_the_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"stream\.buckets\.compression must be .*'height': 16"):
        resolve(TrainRunConfig, CONFIGS / "train.yaml", ["train.tokenizer.height=8"])
    with pytest.raises(UsageError, match=r"max_text_tokens"):
        changes = ["train.text.kind=hashed", "train.text.max_text_tokens=99"]
        resolve(TrainRunConfig, CONFIGS / "train.yaml", changes)


def test_training_refuses_a_stream_without_pixels() -> None:
    with pytest.raises(UsageError, match=r"stream\.decode must be true"):
        resolve(TrainRunConfig, CONFIGS / "train.yaml", ["dataset=x", "stream.decode=false"])


def test_a_choice_without_its_kind_is_explained() -> None:
    with pytest.raises(UsageError, match=r"set train\.text\.kind"):
        resolve(TrainRunConfig, CONFIGS / "train.yaml", ["train.text.vocabulary=99"])


def test_pages_and_files_of_keys_are_what_the_models_say() -> None:
    docs = CONFIGS.parents[1] / "docs"
    generated = {
        CONFIGS / "curate.yaml": yaml_file(CurateConfig()),
        docs / "curate-config.md": page(CurateConfig, CURATE_HEAD),
        docs / "train-config.md": page(TrainConfig, TRAIN_HEAD),
        docs / "vae-config.md": page(VaeTrainConfig, VAE_HEAD),
        docs / "latents-config.md": page(LatentsConfig, LATENTS_HEAD),
    }
    old = [path.name for path, text in generated.items() if path.read_text() != text]
    assert old == [], f"run `make generated`, which writes {old}"
