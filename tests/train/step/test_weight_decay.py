"""Weight decay acts on layers' weights, by their kind: one step with decay and one without, each tensor compared."""

from pathlib import Path

import pytest
import torch

from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from reelweave.train.step.weight_decay import decayed_weights
from reelweave.train.vae.trainer import VaeTrainer
from tests.thorough import beyond, thorough
from tests.train.clips import ClipStream
from tests.train.published import run_config
from tests.train.saved import tensors
from tests.train.vae import tiny

DECAY = 50.0
NO_WEIGHTS = ("scale_shift_table", "pos_emb", "gamma")
"""Names of tables, learned positions and gains of more than one dimension, in the models of this test."""


def settings(decay: float, moments: str = "float32") -> dict:
    return {
        "optimizer": {"lr": 1e-3, "weight_decay": decay, "moments": moments},
        "schedule": {"total_steps": 1, "warmup_steps": 0, "kind": "constant"},
    }


def check(plain: dict[str, torch.Tensor], shrunk: dict[str, torch.Tensor]) -> set[str]:
    """Check that decay shrinks the weights of layers alone; return the names of the others with many dimensions."""
    untouched = {name for name, tensor in plain.items() if torch.equal(tensor, shrunk[name])}
    named = {name for name in plain if any(part in name for part in NO_WEIGHTS)}
    assert untouched == named | {name for name, tensor in plain.items() if tensor.ndim < 2}
    return {name for name in named if plain[name].ndim > 1}


def trained(
    folder: Path, variant: str, decay: float, moments: str = "float32", **update
) -> dict[str, torch.Tensor]:
    folder.mkdir()
    config = run_config(folder, variant, 1, **settings(decay, moments), **update)
    Trainer(config, ClipStream(), folder / "run").run()
    return tensors(folder / "run")


@pytest.mark.parametrize(
    ("variant", "tables"), beyond(1, [("wan", 3), ("cosmos", 3), ("cogvideox", 0), ("hunyuan", 0)])
)
def test_tables_and_positions_of_published_transformers_are_not_decayed(
    tmp_path: Path, variant: str, tables: int
) -> None:
    plain, shrunk = (trained(tmp_path / str(decay), variant, decay) for decay in (0.0, DECAY))
    assert len(check(plain, shrunk)) == tables


@thorough
@pytest.mark.parametrize("moments", ["bfloat16", "8bit"])
def test_moments_of_fewer_bits_decay_the_same_weights(tmp_path: Path, moments: str) -> None:
    plain, shrunk = (trained(tmp_path / str(decay), "wan", decay, moments=moments) for decay in (0.0, DECAY))
    assert len(check(plain, shrunk)) == 3


def test_adapters_are_decayed(tmp_path: Path) -> None:
    plain, shrunk = (trained(tmp_path / str(decay), "wan", decay, lora={"rank": 4}) for decay in (0.0, DECAY))
    # The matrices B begin at zero.
    untouched = {name for name, tensor in plain.items() if torch.equal(tensor, shrunk[name])}
    assert untouched == {name for name in plain if ".lora_B." in name}
    assert any(".lora_A." in name for name in plain)


@pytest.mark.parametrize("kind", beyond(1, ["dit", "mmdit", "st_dit"]))
def test_of_our_own_models_all_matrices_are_decayed_as_ever(kind: str) -> None:
    model = {"kind": kind, "hidden": 48, "heads": 2, "layers": 1, "adaln_rank": 4}
    bundle = Bundle(TrainConfig(model=model))
    matrices = {name for name, parameter in bundle.trained_weights().items() if parameter.ndim > 1}
    assert decayed_weights(bundle) & bundle.trained_weights().keys() == matrices


@pytest.mark.parametrize("kind", beyond(1, [tiny.WAN, tiny.COSMOS]))
def test_gains_of_a_tokenizers_norms_are_not_decayed(tmp_path: Path, kind: str) -> None:
    tiny.publish(tmp_path, kind)
    size = {} if kind == tiny.WAN else {"model": {"frames": 4, "height": 4, "width": 4}}
    kl = {} if kind == tiny.WAN else {"kl": None}
    groups = {}
    for decay in (0.0, DECAY):
        gan = tiny.GAN | {"optimizer": settings(decay)["optimizer"], "start_step": 1}
        config = tiny.config(tmp_path, losses={"gan": gan} | kl, **settings(decay), **size)
        VaeTrainer(config, tiny.MixedStream(), tmp_path / str(decay)).run()
        groups[decay] = [tensors(tmp_path / str(decay), group) for group in ("model", "discriminator")]
    gains, none = (check(plain, shrunk) for plain, shrunk in zip(*groups.values(), strict=True))
    assert not none
    assert (len(gains) > 0) == (kind == tiny.WAN)
