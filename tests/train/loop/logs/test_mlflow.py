"""Where scalars go: MLflow, by its own client, into its file store and to servers that are lost."""

import json
import logging
import shutil
import sys

import numpy as np
import pytest

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.log import LogConfig, MlflowConfig
from reelweave.train.loop.logs.mlflow_reader import MlflowReader
from reelweave.train.loop.logs.record import ReconstructionRecord, ValidationRecord
from reelweave.train.loop.trainer import Trainer
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config

ASKED = MlflowConfig(experiment="waves", name="first")


def loss(step: int, value: float) -> ReconstructionRecord:
    return ReconstructionRecord(step, {"train": {"loss": value}})


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The address of a store of files, as the environment names it."""
    address = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")  # set by the writer, and taken back after the test
    return address


@thorough
def test_a_run_that_goes_on_is_the_same_run_to_mlflow(store, tmp_path):
    config, out = tiny_config(3), tmp_path / "run"
    out.mkdir()
    writer = MlflowReader(out, ASKED, config)
    for step in (1, 2):
        writer.read(loss(step, 1 / step))
    writer.read(ValidationRecord(2, {}, {"0": np.zeros((16, 24, 3), np.uint8)}))
    writer.close(failed=True)
    again = MlflowReader(out, ASKED, config)
    again.read(loss(3, 0.25))
    again.close(failed=False)

    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("waves")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [(1, 1.0), (2, 0.5), (3, 0.25)]
    assert run.data.params["schedule.total_steps"] == "3"
    assert json.loads(run.data.params["optimizer.lr"]) == config.optimizer.lr
    assert len(client.list_artifacts(run.info.run_id, "images")) > 0


@thorough
def test_a_server_that_is_lost_costs_points_and_is_told_once(store, tmp_path, caplog):
    writer = MlflowReader(tmp_path, ASKED, tiny_config(3))
    shutil.rmtree(tmp_path / "store")
    with caplog.at_level(logging.WARNING, "reelweave.train"):
        for step in range(1, 4):
            writer.read(loss(step, 1.0))
        writer.close(failed=False)
    (said,) = caplog.messages
    assert said.startswith("MLflow misses points of this run: ")
    assert said.endswith(" does not exist.; metrics.jsonl has them all")


@thorough
def test_a_server_that_is_missing_is_named_before_the_first_step(store, tmp_path, monkeypatch):
    config = tiny_config(3).model_copy(update={"log": LogConfig(tensorboard=False, mlflow=ASKED)})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(RunError, match=r"MLflow did not begin a run .*MLFLOW_TRACKING_URI"):
        Trainer(config, ClipStream(), tmp_path).run()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(UsageError, match="set MLFLOW_TRACKING_URI"):
        MlflowReader(tmp_path, ASKED, config)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    config = tiny_config(3).model_copy(update={"log": LogConfig(tensorboard=False, mlflow=ASKED)})
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match=r"pip install 'reelweave\[mlflow\]'"):
        Trainer(config, ClipStream(), tmp_path).run()
