"""Files of a VAE's run that are replaced between two starts are named."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.vae.export import export
from reelweave.train.vae.trainer import VaeTrainer
from tests.thorough import thorough
from tests.train.vae import tiny


def test_a_replaced_encoder_that_is_not_trained_is_refused_and_said_by_export(tmp_path, caplog):
    tiny.publish(tmp_path)
    settings = {"model": {"frozen_encoder": True}, "losses": {"kl": None}}
    run, file = tmp_path / "run", tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    VaeTrainer(tiny.config(tmp_path, 2, **settings), tiny.MixedStream(), run).run()
    export(weights_of(str(run)), tmp_path / "first")
    assert "another file" not in caplog.text
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}, file, {"format": "pt"}
    )
    with pytest.raises(
        UsageError, match=rf"{file} is another file than the one that .*step-000002 .*changed_parts"
    ):
        VaeTrainer(tiny.config(tmp_path, 4, **settings), tiny.MixedStream(), run).run()
    export(weights_of(str(run)), tmp_path / "second")
    assert f"{file} is another file than the one that " in caplog.text


@thorough
def test_weights_that_are_all_trained_may_be_replaced(tmp_path):
    tiny.publish(tmp_path)
    run, file = tmp_path / "run", tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    VaeTrainer(tiny.config(tmp_path, 2), tiny.MixedStream(), run).run()
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in load_file(file).items()}, file, {"format": "pt"}
    )
    VaeTrainer(tiny.config(tmp_path, 4), tiny.MixedStream(), run).run()
