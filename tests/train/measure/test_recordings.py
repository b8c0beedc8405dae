"""Profiles of some steps; what needs a GPU says so."""

import gzip
import itertools
import json

import pytest

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.config.log import LogConfig, MemorySnapshotConfig, ProfileConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from tests.train.clips import ClipStream, tiny_config


def config(total_steps: int = 6, **log) -> TrainConfig:
    settings = LogConfig(tensorboard=False, **log)
    # Written at once, a checkpoint is there whenever a run breaks off.
    checkpoint = CheckpointConfig(every_steps=2, background=False)
    return tiny_config(total_steps).model_copy(update={"log": settings, "checkpoint": checkpoint})


class Short(ClipStream):
    """Ends behind three steps."""

    def __iter__(self):
        return itertools.islice(super().__iter__(), 3 - self.position)


def events(path) -> list[dict]:
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_trace_has_the_chosen_steps_and_the_parts_by_their_names(tmp_path):
    Trainer(config(profile=ProfileConfig(from_step=3, steps=2)), ClipStream(), tmp_path).run()
    [path] = (tmp_path / "profiles").iterdir()
    assert path.name == "steps-000003-000004-rank-0000.json.gz"
    names = [event["name"] for event in events(path) if event.get("cat") == "user_annotation"]
    for part in ("text", "vae", "forward", "backward", "optimizer"):
        assert names.count(part) == 2, part


def test_a_run_that_ends_within_the_steps_leaves_no_trace(tmp_path):
    profile = ProfileConfig(from_step=2, steps=3)
    with pytest.raises(RunError, match="ended before step 4"):
        Trainer(config(profile=profile), Short(), tmp_path).run()
    assert not (tmp_path / "profiles").exists()
    # It goes on from step 2, within the steps.
    Trainer(config(profile=profile), ClipStream(), tmp_path).run()
    assert not (tmp_path / "profiles").exists()


def test_a_run_that_goes_on_records_steps_that_were_not_made(tmp_path):
    with pytest.raises(RunError):
        Trainer(config(), Short(), tmp_path).run()
    Trainer(config(profile=ProfileConfig(from_step=4, steps=1)), ClipStream(), tmp_path).run()
    [path] = (tmp_path / "profiles").iterdir()
    assert [event["name"] for event in events(path)].count("optimizer") == 1


def test_a_memory_snapshot_needs_a_gpu(tmp_path):
    with pytest.raises(UsageError, match=r"log\.memory_snapshot needs a GPU"):
        Trainer(config(memory_snapshot=MemorySnapshotConfig()), ClipStream(), tmp_path).run()


def test_a_rank_that_there_is_not_is_refused(tmp_path):
    profile = ProfileConfig(ranks=(0, 2))
    with pytest.raises(UsageError, match=r"log\.profile\.ranks has 2.*0 to 0"):
        Trainer(config(profile=profile), ClipStream(), tmp_path).run()


def test_steps_that_a_run_does_not_have_are_refused():
    log = {"profile": {"from_step": 58, "steps": 3}}
    assert TrainConfig(log=log).log.profile.last_step == 60
    with pytest.raises(ValueError, match=r"log\.profile ends with step 61"):
        TrainConfig(log={"profile": {"from_step": 59, "steps": 3}})
