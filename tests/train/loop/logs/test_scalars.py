"""Where scalars go: Weights & Biases, offline; TensorBoard has its test beside the trainer's."""

import json
import sys
import time
from pathlib import Path

import pytest

from reelweave.loader.errors import UsageError
from reelweave.train.config.log import LogConfig, WandbConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.saved import losses


def config(total_steps: int) -> TrainConfig:
    wandb = WandbConfig(project="waves", name="first", mode="offline")
    settings = LogConfig(tensorboard=False, wandb=wandb)
    return tiny_config(total_steps).model_copy(update={"log": settings})


def written(path: Path, last: bytes) -> bytes:
    """What wandb's own process has written; it goes on for a moment after the run."""
    deadline = time.monotonic() + 120
    while last not in (found := path.read_bytes()):
        assert time.monotonic() < deadline, last
        time.sleep(0.01)
    return found


class Slow(ClipStream):
    """Begins late: wandb looks at its machine and the command line in its first seconds."""

    def __iter__(self):
        time.sleep(2.5)
        return super().__iter__()


@thorough
def test_a_run_that_goes_on_is_the_same_run_to_wandb(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reelweave", "train", "--set", "storage.secret_access_key=HUNTER2"])
    shown = []
    for steps, stream in ((3, Slow()), (4, ClipStream())):
        before = set(tmp_path.glob("wandb/offline-run-*"))
        Trainer(config(steps), stream, tmp_path).run()
        [folder] = set(tmp_path.glob("wandb/offline-run-*")) - before
        [path] = folder.glob("*.wandb")
        assert path.name == f"run-{(tmp_path / 'run_id').read_text()}.wandb"
        shown.append(written(path, last=json.dumps(losses(tmp_path)[-1]).encode()))
    told = [json.dumps(loss).encode() for loss in losses(tmp_path)]
    assert [loss in shown[0] for loss in told] == [True, True, True, False]
    assert [loss in shown[1] for loss in told] == [False, False, False, True]
    for name in (b"train/tokens_per_s", b"time/forward_s", b"share/data", b"warmup_steps"):
        assert all(name in bytes_ for bytes_ in shown), name
    files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert not [path for path in files if b"HUNTER2" in path.read_bytes()]


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"pip install 'reelweave\[wandb\]'"):
        Trainer(config(3), ClipStream(), tmp_path).run()


def test_who_does_not_want_wandb_needs_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    Trainer(tiny_config(1), ClipStream(), tmp_path).run()
    assert not (tmp_path / "wandb").exists()
