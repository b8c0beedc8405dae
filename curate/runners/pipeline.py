"""Runners: the same stages on Ray Data or in this process. The only module that knows Ray."""

import itertools
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

from curate.records import Row
from curate.runners.room import Share, fitted
from loader.errors import RunError, UsageError
from loader.storage.names import redacted

# More blocks than this cost the driver more than they spread the load.
_MAX_BLOCKS = 4096

SILENCE_S = 6 * 3600.0
"""Seconds without any result after which a run counts as stuck, where no stage says more."""

TIMING = "timing"
"""The column in which rows carry the seconds each stage spent on them."""


class Pool(NamedTuple):
    """Workers of a stage: how many there may be, and with how many it begins."""

    least: int
    most: int
    initial: int


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        name: for timings and messages.
        function: rows -> any number of rows; must survive pickling. A stage with a pool keeps one function per
            worker, so that a model is loaded once; the others share tasks.
        batch: rows handed over at once.
        pool: None for plain tasks.
        limit: plain tasks at a time; None: as many as there are processors.
        cpus: processors one call occupies.
        gpus: graphics processors, or a share of one.
        memory_mb: megabytes of RAM one call may need.
        max_silence_s: seconds until the first row of a call. The longest of all stages is the time without any
            result after which a run stops; starting nodes and loading models counts.
    """

    name: str
    function: Callable[[list[Row]], Iterable[Row]]
    batch: int = 1
    pool: Pool | None = None
    limit: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: float = 0
    max_silence_s: float = SILENCE_S


class Runner(Protocol):
    """Sends rows of JSON values through stages; results come in any order, as they are ready."""

    def __call__(self, rows: Sequence[Row], stages: Sequence[Stage]) -> Iterator[Row]:
        """Yields the rows that leave the last stage."""


def runner(kind: Literal["ray", "sequential"]) -> Runner:
    """The runner a configuration names."""
    return run_on_ray if kind == "ray" else run_sequentially


def run_sequentially(rows: Iterable[Row], stages: Sequence[Stage]) -> Iterator[Row]:
    """In this process, one stage after the other for each batch."""
    if not stages:
        yield from rows
        return
    *before, last = stages
    batch: list[Row] = []
    for row in run_sequentially(rows, before):
        batch.append(row)
        if len(batch) == last.batch:
            yield from _timed(last, batch)
            batch = []
    if batch:
        yield from _timed(last, batch)


def run_on_ray(rows: Sequence[Row], stages: Sequence[Stage]) -> Iterator[Row]:
    """On Ray Data: the running cluster of RAY_ADDRESS, or one started on this machine.

    Rows travel as JSON text, so that Arrow never has to guess a schema. One row is one block while that is
    affordable: results arrive source by source and one slow source delays no other. Neighbouring stages
    without a pool are one task: Ray sets part of the processors aside for every task of its own. Workers
    share processors and GPUs where one of each stage would not find room (`curate.runners.room`).

    Raises:
        UsageError: Ray is not installed, or a stage can never find room.
        RunError: a stage failed for a reason that is no data's fault, after Ray's own retries; or nothing came
            for longer than the stages may be silent.
    """
    if not rows:
        return
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UsageError(
            "Ray is not installed: pip install 'reelweave[curate]', or set the configuration's runner to sequential"
        ) from error
    _start(ray)
    # Its notes are for its developers; what fails reaches the caller as an exception.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    silence_s = max(stage.max_silence_s for stage in stages)
    context.execution_no_progress_timeout_s = silence_s
    items = [{"row": json.dumps(row)} for row in rows]
    dataset = ray.data.from_items(items, override_num_blocks=min(len(rows), _MAX_BLOCKS))
    for together in tasks(placed(stages)):
        dataset = _add(ray, dataset, together)
    try:
        for item in dataset.iter_rows():
            yield json.loads(item["row"])
    except ray.data.exceptions.ExecutionTimeoutError as error:
        raise RunError(
            f"stopped: no worker gave a result for {silence_s:.0f} s; look whether the cluster still has nodes"
            " with free processors and GPUs, then run the same command again to go on"
        ) from error
    except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
        raise RunError(f"stopped: {_root_cause(error)}; run the same command again to go on") from error


def cluster_nodes() -> list[Share]:
    """What the nodes of the cluster that Ray runs on have, one entry for each that is alive."""
    import ray

    _start(ray)
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Share(one.get("CPU", 0.0), one.get("GPU", 0.0), one.get("memory", 0.0) / 1e6) for one in found]


def cluster_size() -> Share:
    """Resources of all nodes together."""
    nodes = cluster_nodes()
    return Share(
        sum(node.cpus for node in nodes) or 1.0,
        sum(node.gpus for node in nodes),
        sum(node.memory_mb for node in nodes),
    )


def placed(stages: Sequence[Stage]) -> list[Stage]:
    """The stages with the resources that their workers reserve on the cluster Ray runs on; see `curate.runners.room`.

    Stages that are one task have the same.

    Raises:
        UsageError: one can never find room.
    """
    together = tasks(stages)
    wanted = {
        _name(task): Share(
            max(stage.cpus for stage in task),
            max(stage.gpus for stage in task),
            max(stage.memory_mb for stage in task),
        )
        for task in together
    }
    shares = fitted(wanted, cluster_nodes())
    return [
        replace(stage, cpus=share.cpus, gpus=share.gpus, memory_mb=share.memory_mb)
        for task in together
        for stage, share in ((stage, shares[_name(task)]) for stage in task)
    ]


def _name(task: Sequence[Stage]) -> str:
    return "+".join(stage.name for stage in task)


def tasks(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Neighbouring stages without a pool together, the others each for itself."""
    return [
        part
        for pooled, group in itertools.groupby(stages, key=lambda stage: stage.pool is not None)
        for part in ([[stage] for stage in group] if pooled else [list(group)])
    ]


def _add(ray: Any, dataset: Any, stages: list[Stage]) -> Any:
    first = stages[0]
    options: dict[str, Any] = {"batch_size": first.batch, "num_cpus": max(stage.cpus for stage in stages)}
    if gpus := max(stage.gpus for stage in stages):
        options["num_gpus"] = gpus
    if memory_mb := max(stage.memory_mb for stage in stages):
        options["memory"] = memory_mb * 1e6
    if first.pool is None:
        limits = [stage.limit for stage in stages if stage.limit is not None]
        if limits:
            options["compute"] = ray.data.TaskPoolStrategy(size=min(limits))
        return dataset.map_batches(_OnBatches(stages), **options)
    pool = ray.data.ActorPoolStrategy(
        min_size=first.pool.least, max_size=first.pool.most, initial_size=first.pool.initial
    )
    return dataset.map_batches(_OnBatches, fn_constructor_args=(stages,), compute=pool, **options)


class _OnBatches:
    """Stages as Ray Data calls them: batches of JSON texts in, the same out, row by row."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for row in run_sequentially([json.loads(text) for text in batch["row"]], self._stages):
            yield {"row": [json.dumps(row)]}


def _timed(stage: Stage, batch: list[Row]) -> Iterator[Row]:
    """The stage's rows, each with its share of the seconds that passed until it came."""
    share = 1 / len(batch)
    began = time.monotonic()
    for row in stage.function(batch):
        now = time.monotonic()
        spent = row.setdefault(TIMING, {})
        spent[stage.name] = spent.get(stage.name, 0.0) + (now - began) * (1.0 if len(batch) == 1 else share)
        yield row
        began = time.monotonic() if len(batch) == 1 else began


def _start(ray: Any) -> None:
    if ray.is_initialized():
        return
    # A report of usage would go to the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Its C++ core writes notes for its developers to our terminal, even one that it now writes none.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with _held_back():
        if address := os.environ.get("RAY_ADDRESS"):
            try:
                ray.init(log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError) as error:
                raise RunError(
                    f"no Ray cluster answers at RAY_ADDRESS={redacted(address)}; start it and run the same command"
                    " again, or unset RAY_ADDRESS to work on this machine alone"
                ) from error
        else:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold back what this process writes to its standard error; it is shown where the work fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            file.seek(0)
            os.write(kept, file.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def _root_cause(error: BaseException) -> str:
    """What a stage raised: Ray keeps of it the traceback's text, with its own advice around."""
    raised = _RAISED.findall(str(error))
    name, message = raised[0] if raised else (type(error).__name__, "see the logs of Ray")
    return str(message) if name == RunError.__name__ else f"{name}: {message}"
