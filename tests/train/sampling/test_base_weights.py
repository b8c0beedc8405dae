"""The base weights under adapters are those that the adapters were trained on, or the difference is said."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from reelweave.loader.base.strict_json import SEAL, digest
from reelweave.loader.errors import UsageError
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.sampling.trained.load import load_trained
from tests.train.clips import ClipStream, tiny_config
from tests.train.published import run_config

CPU = torch.device("cpu")


def to_steps(config, steps):
    return config.model_copy(update={"schedule": config.schedule.model_copy(update={"total_steps": steps})})


def earlier(run):
    """Make the checkpoints of a run those of an earlier version."""
    for path in run.glob("checkpoints/*/state.json"):
        values = json.loads(path.read_text()) | {"format_version": 4}
        del values["base"], values[SEAL]
        path.write_text(json.dumps(values | {SEAL: digest(values)}))


def refused(run, config):
    """What sampling and a resume say alike."""
    said = set()
    for act in (
        lambda: load_trained(str(run), CPU),
        lambda: Trainer(to_steps(config, 4), ClipStream(), run).run(),
    ):
        with pytest.raises(UsageError, match="adapters that were trained on") as caught:
            act()
        said.add(str(caught.value))
    [text] = said
    return text


def test_other_files_of_a_published_base_are_refused_by_sampling_and_resume(tmp_path, caplog):
    config = run_config(tmp_path, "wan", 2, lora={"rank": 2, "alpha": 2.0})
    run = tmp_path / "run"
    Trainer(config, ClipStream(), run).run()
    load_trained(str(run), CPU)
    [file] = (tmp_path / "transformer").glob("*.safetensors")
    weights = load_file(file)
    save_file({name: weight + 0.05 for name, weight in weights.items()}, file, {"format": "pt"})
    text = refused(run, config)
    assert "step-000002 holds adapters" in text
    assert text.count(f"{tmp_path}, transformer (sha256 ") == 2
    earlier(run)
    load_trained(str(run), CPU)
    assert "is of an earlier version, which did not store on which base weights" in caplog.text
    Trainer(to_steps(config, 4), ClipStream(), run).run()


def test_adapters_stay_on_their_step_of_a_base_run_that_goes_on(tmp_path):
    base, run = tmp_path / "base", tmp_path / "run"
    own = tiny_config(2).model_copy(update={"ema": EmaConfig(decay=0.5)})
    Trainer(own, ClipStream(), base).run()
    lora = LoraConfig(rank=2, alpha=2.0, checkpoint=str(base))
    config = own.model_copy(update={"lora": lora})
    Trainer(config, ClipStream(), run).run()
    expected = load_trained(str(run), CPU).bundle.state_dict()
    Trainer(to_steps(own, 3), ClipStream(), base).run()
    for name, weight in load_trained(str(run), CPU).bundle.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    Trainer(to_steps(config, 3), ClipStream(), run).run()
    shutil.rmtree(base / "checkpoints" / "step-000002")
    text = refused(run, config)
    assert f"{base}/checkpoints/step-000002 (sha256 " in text
    assert f"{base}/checkpoints/step-000003 (sha256 " in text
