import subprocess
import sys

import pytest
from pydantic import ValidationError

from reelweave.train.config.model import PRESETS, DiTConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.tokenizer import PatchTransformConfig


def test_a_configuration_is_read_without_torch():
    code = "import sys, reelweave.train.config.run; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_token_covers_the_tokenizers_patch_times_the_models():
    config = TrainConfig(
        tokenizer=PatchTransformConfig(frames=4, height=8, width=4), model=DiTConfig(patch=(1, 2, 3))
    )
    compression = config.compression
    assert (compression.frames, compression.height, compression.width) == (4, 16, 12)
    assert compression.causal


@pytest.mark.parametrize("settings", [{"hidden": 100, "heads": 3}, {"hidden": 12, "heads": 3}])
def test_heads_that_do_not_fit_the_width_are_refused(settings):
    with pytest.raises(ValidationError, match="hidden"):
        DiTConfig(**settings)


def test_the_kind_decides_the_model_and_none_is_a_dit():
    given = [{"hidden": 48}, {"kind": "dit", "hidden": 48}, {"kind": "st_dit", "full_attention": True}]
    kinds = [TrainConfig.model_validate({"model": model}).model.kind for model in given]
    assert kinds == ["dit", "dit", "st_dit"]
    with pytest.raises(ValidationError, match="full_attention"):
        TrainConfig.model_validate({"model": {"kind": "mmdit", "full_attention": True}})


def test_a_model_may_be_the_name_of_a_preset():
    assert TrainConfig.model_validate({"model": "tiny-mmdit"}).model == PRESETS["tiny-mmdit"]
    with pytest.raises(ValidationError, match="tiny-mmdit"):
        TrainConfig.model_validate({"model": "tiny-mm-dit"})


def test_the_kind_decides_the_text_encoder():
    config = TrainConfig.model_validate({"text": {"kind": "transformers", "name": "google/t5-small"}})
    assert config.text.kind == "transformers"
    with pytest.raises(ValidationError):
        TrainConfig.model_validate({"text": {"kind": "hashed", "name": "google/t5-small"}})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parallel": {"dp_shard": 2, "reduce_gradients": "step"}}, "reduce_gradients"),
        ({"parallel": {"dp_shard": 2}, "cascade": {"correction": {}}}, "reorders"),
        ({"parallel": {"ulysses": 2}}, "ulysses"),
        ({"parallel": {"ring": 2}}, "ring"),
        ({"parallel": {"tp": 2}}, "tp"),
        ({"parallel": {"pp": 2}}, "pp"),
        ({"parallel": {"compile": True}}, "compile"),
        ({"recalibrate": {"every_steps": 10}}, "recalibrate"),
        ({"lora": {"dropout": 0.1, "checkpoint": "run"}}, "lora.dropout"),
        (
            {
                "parallel": {"dp_shard": 2, "shard": "optimizer"},
                "cascade": {"gradient_sum": "representatives"},
            },
            "gradient_sum",
        ),
        ({"cascade": {"degrees": [0, 1]}}, "degrees"),
        ({"cascade": {"memory_gib": 80}}, "memory_gib needs cascade.costs"),
    ],
)
def test_what_cannot_go_with_cascades_is_refused_by_name(changes, named):
    parallel = changes.get("parallel", {}) | {"schedule": "cascade"}
    with pytest.raises(ValidationError, match=named):
        TrainConfig.model_validate(changes | {"parallel": parallel})


def test_cascades_go_with_replicas_and_zero():
    for parallel in ({}, {"dp_replicate": 1, "dp_shard": "rest", "shard": "optimizer"}):
        config = TrainConfig.model_validate({"parallel": parallel | {"schedule": "cascade"}})
        assert config.parallel.schedule == "cascade"
