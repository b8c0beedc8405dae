"""Runners: the same stages on Ray Data or in this process. The only module that knows Ray."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from curate.records import Row
from loader.errors import RunError, UsageError

# More blocks than this cost the driver more than they spread the load.
_MAX_BLOCKS = 4096


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        function: row -> row, or row -> rows when ``fan_out``; must survive pickling.
        fan_out: whether the function yields any number of rows.
    """

    function: Callable[[Row], Any]
    fan_out: bool = False


class Runner(Protocol):
    """Sends rows through stages; results come in any order, as they are ready."""

    def __call__(self, rows: Sequence[Row], stages: Sequence[Stage]) -> Iterator[Row]:
        """Yields the rows that leave the last stage."""


def runner(kind: Literal["ray", "sequential"]) -> Runner:
    """The runner a configuration names."""
    return run_on_ray if kind == "ray" else run_sequentially


def run_sequentially(rows: Sequence[Row], stages: Sequence[Stage]) -> Iterator[Row]:
    """In this process, one row at a time."""
    for row in rows:
        yield from _through(row, stages)


def _through(row: Row, stages: Sequence[Stage]) -> Iterator[Row]:
    if not stages:
        yield row
        return
    stage, *rest = stages
    for result in stage.function(row) if stage.fan_out else (stage.function(row),):
        yield from _through(result, rest)


def run_on_ray(rows: Sequence[Row], stages: Sequence[Stage]) -> Iterator[Row]:
    """On Ray Data: the running cluster of RAY_ADDRESS, or one started on this machine.

    Stages ask for the same resources, so Ray fuses them into one task per block and no bytes pass through
    its object store between them. One row is one block while that is affordable: results arrive source by
    source and one slow source delays no other.

    Raises:
        UsageError: Ray is not installed.
        RunError: a stage failed for a reason that is no data's fault, after Ray's own retries.
    """
    if not rows:
        return
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise UsageError(
            "Ray is not installed: pip install 'reelweave[curate]', or --set run.runner=sequential"
        ) from error
    _start(ray)
    # Its notes are for its developers; what fails reaches the caller as an exception.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    dataset = ray.data.from_items(list(rows), override_num_blocks=min(len(rows), _MAX_BLOCKS))
    for stage in stages:
        dataset = dataset.flat_map(stage.function) if stage.fan_out else dataset.map(stage.function)
    try:
        yield from dataset.iter_rows()
    except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
        raise RunError(
            f"curation stopped: {_root_cause(error)}; run the same command again to go on"
        ) from error


def _start(ray: Any) -> None:
    if ray.is_initialized():
        return
    # A report of usage would go to the network.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level="ERROR")
    else:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")


_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


def _root_cause(error: BaseException) -> str:
    """What a stage raised: Ray keeps of it the traceback's text, with its own advice around."""
    raised = _RAISED.findall(str(error))
    name, message = raised[0] if raised else (type(error).__name__, "see the logs of Ray")
    return str(message) if name == RunError.__name__ else f"{name}: {message}"
