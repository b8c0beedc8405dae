"""Reader of a run's records for MLflow, which sends them beside the steps."""

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.train.config.log import MlflowConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.loop.logs.record import Record

_MLFLOW_ID = "mlflow_id"
_MOST_PARAMS = 100  # of one request, by the protocol
_MOST_CHARACTERS = 500  # of a parameter, by servers of MLflow 2
_MOST_WAITING = 1000
_LAST_S = 60.0

_log = logging.getLogger(__name__)


class MlflowReader:
    """Reader that sends to MLflow; a resumed run goes on in the same MLflow run.

    A thread sends what steps leave, so that a slow or lost server costs points and no step. Points of steps that are
    repeated after a kill appear again. Only scalars, pictures and the configuration, which holds no secrets, are sent.
    """

    def __init__(self, out: Path, config: MlflowConfig, run: TrainConfig | VaeTrainConfig) -> None:
        # MLflow counts its users unless told otherwise before it is imported.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        import mlflow  # takes seconds, and not every run wants it
        from mlflow.entities import Metric, Param

        if not mlflow.is_tracking_uri_set():
            raise UsageError("log.mlflow needs a server: set MLFLOW_TRACKING_URI, or log.mlflow to null")
        self._point: Callable[..., Any] = Metric
        self._client = mlflow.MlflowClient()
        try:
            self._id = self._begin_run(out / _MLFLOW_ID, config)
            params = [
                Param(key, value[:_MOST_CHARACTERS]) for key, value in _flat(run.model_dump(mode="json"))
            ]
            for first in range(0, len(params), _MOST_PARAMS):
                self._client.log_batch(self._id, params=params[first : first + _MOST_PARAMS])
        except mlflow.MlflowException as error:
            raise RunError(
                f"MLflow did not begin a run ({first_line(error)}): see MLFLOW_TRACKING_URI, or set log.mlflow to null"
            ) from error
        self._sender = ThreadPoolExecutor(1, "mlflow")
        self._waiting: deque[Future[None]] = deque()
        self._complained = False

    def read(self, record: Record) -> None:
        at, step = time.time_ns() // 10**6, record.step
        if points := [self._point(name, value, at, step) for name, value in record.scalars().items()]:
            self._send(lambda: self._client.log_batch(self._id, metrics=points))
        for name, picture_HWC in record.pictures().items():
            self._send(partial(self._client.log_image, self._id, picture_HWC, key=name, step=step))

    def close(self, failed: bool) -> None:
        self._send(lambda: self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED"))
        wait(self._waiting, timeout=_LAST_S)
        self._look()
        self._sender.shutdown(wait=False, cancel_futures=True)

    def _begin_run(self, id_file: Path, config: MlflowConfig) -> str:
        """Return the identity of the run, begun now or by the process before."""
        if id_file.exists():
            run_id = id_file.read_text(encoding="utf-8").strip()
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        experiment = self._client.get_experiment_by_name(config.experiment)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(config.experiment)
        )
        run_id = str(self._client.create_run(experiment_id, run_name=config.name).info.run_id)
        with whole_file(id_file) as aside:
            aside.write_text(run_id, encoding="utf-8")
        return run_id

    def _send(self, request: Callable[[], None]) -> None:
        self._look()
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(self._sender.submit(request))
        else:
            self._complain(f"more than {_MOST_WAITING} requests wait")

    def _look(self) -> None:
        """Forget requests that are over, and tell of the first that failed."""
        while self._waiting and self._waiting[0].done():
            if error := self._waiting.popleft().exception():
                self._complain(first_line(error))

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("MLflow misses points of this run: %s; metrics.jsonl has them all", reason)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested mappings as JSON text by dotted key."""
    if isinstance(value, dict) and value:
        for part, inner in value.items():
            yield from _flat(inner, f"{key}.{part}" if key else str(part))
    else:
        yield key, json.dumps(value, ensure_ascii=False)
