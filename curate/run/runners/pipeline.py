"""Runners: the same stages on Ray Data or in this process."""

import itertools
import logging
import os
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from reelweave.curate.run.runners.node_paths import enter_folder
from reelweave.curate.run.runners.ray_cluster import (
    RayNotInstalledError,
    RayTooSlowError,
    cluster_nodes,
    start_ray,
)
from reelweave.curate.run.runners.ray_errors import in_words
from reelweave.curate.run.runners.replanning import Kept, Setup, replanning
from reelweave.curate.run.runners.reservations import Resources, fit_reservations
from reelweave.curate.run.runners.workers import StageState

Task = TypeVar("Task")
Item = TypeVar("Item")
Kind = Literal["ray", "sequential"]

# More blocks than this cost the driver more than they spread the load.
_MAX_BLOCKS = 4096

AT_ONCE = 1 << 18
"""Tasks that the driver holds at a time: one takes some KB of memory."""

_RESERVED = 0.1
"""Share of the cluster that Ray divides equally among operators before they compete; its default is half."""

_TOO_SLOW = (
    "Ray's own processes did not start in the 30 s that it gives them, so one process does all the work; on a"
    " machine of many processors, run the next time when it is less busy"
)
_ABSENT = (
    "Ray is not installed, so one process does all the work;"
    " pip install 'reelweave[ray]' gives work to every processor"
)
_log = logging.getLogger(__name__)

SILENCE_S = 6 * 3600.0
"""Seconds without any result after which a run counts as stuck, where no stage allows more."""


@dataclass(frozen=True)
class Stage(Generic[Task]):
    """One step of a pipeline of tasks.

    Attributes:
        name: Name for timings and messages.
        function: Tasks -> any number of tasks; it can be pickled.
        batch: Number of tasks of one call.
        keeps: Whether the stage keeps workers of its own, with one function each, so that a model is loaded once.
            How many is planned while it runs.
        most: Largest number of workers that it keeps; None for as many as find room.
        cpus: Processors that one call occupies.
        gpus: GPUs, or the share of one.
        memory_mb: Megabytes of RAM that one call may need.
        max_silence_s: Seconds until the first result of a call. The longest of all stages is the time without any
            result after which a run stops; starting nodes and loading models counts.
        needs: Local paths that every node must see (`reelweave.curate.run.runners.node_paths`).
    """

    name: str
    function: Callable[[Sequence[Task]], Iterable[Task]]
    batch: int = 1
    keeps: bool = False
    most: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    memory_mb: float = 0
    max_silence_s: float = SILENCE_S
    needs: tuple[str, ...] = ()


class Timed(NamedTuple, Generic[Task]):
    """A task that left a stage.

    Attributes:
        task: The task.
        seconds: Seconds that stages spent since the task before it left, by stage.
    """

    task: Task
    seconds: Mapping[str, float]


class Runner(Protocol):
    """Function that sends tasks through stages; results come in any order, as they are ready."""

    def __call__(
        self, tasks: Iterable[Task], stages: Sequence[Stage[Task]], workers: Kept | None = None
    ) -> Iterator[Timed[Task]]:
        """Yield the tasks that leave the last stage; note in ``workers`` which workers stages kept."""


def runner(kind: Kind) -> Runner:
    """Return the runner of a configuration."""
    return run_on_ray if kind == "ray" else run_sequentially


class Startable(NamedTuple):
    """A runner that works here, and a sentence for the person if it is another than the configuration's."""

    kind: Kind
    note: str | None = None


def startable(kind: Kind) -> Startable:
    """Return the runner that works here, with Ray started: this process where Ray is too slow to start or missing.

    A machine that is busy, or grants little of a processor, gives Ray's processes too little time. The note is logged
    as a warning, too, so that it is read before the work.

    Raises:
        UsageError: Ray is not installed where RAY_ADDRESS names a cluster, or it is incomplete.
        RunError: it cannot start or be joined for another reason.
    """
    if kind == "ray":
        try:
            start_ray()
        except (RayTooSlowError, RayNotInstalledError) as error:
            note = _TOO_SLOW if isinstance(error, RayTooSlowError) else _ABSENT
            _log.warning(note)
            return Startable("sequential", note)
    return Startable(kind)


def run_sequentially(
    tasks: Iterable[Task],
    stages: Sequence[Stage[Task]],
    workers: Kept | None = None,  # noqa: ARG001 - a runner's arguments
) -> Iterator[Timed[Task]]:
    """Run in this process, one stage after the other for each batch."""
    return _run((Timed(task, {}) for task in tasks), stages)


def _run(tasks: Iterable[Timed[Task]], stages: Sequence[Stage[Task]]) -> Iterator[Timed[Task]]:
    if not stages:
        yield from tasks
        return
    *before, last = stages
    batch: list[Timed[Task]] = []
    for task in _run(tasks, before):
        batch.append(task)
        if len(batch) == last.batch:
            yield from _time_stage(last, batch)
            batch = []
    if batch:
        yield from _time_stage(last, batch)


def run_on_ray(
    tasks: Iterable[Task], stages: Sequence[Stage[Task]], workers: Kept | None = None
) -> Iterator[Timed[Task]]:
    """Run on Ray Data: on the cluster of RAY_ADDRESS, or one started on this machine.

    Tasks cross between processes pickled, as the functions do: Arrow need not guess a schema, and arrays are not
    encoded as text. One task is one block while that is affordable: results arrive source by source and one slow
    source delays no other. Neighbouring stages that keep no workers run as one, since Ray reserves processors for each
    operator. How many workers the others keep is planned anew while all run
    (`reelweave.curate.run.runners.workers`). Workers share processors and GPUs where one of each stage would
    not find room (`reelweave.curate.run.runners.reservations`). Many tasks are made and handed to Ray's
    store, with disk behind it, some at a time; the stages start once for all.

    Raises:
        UsageError: Ray is not installed, or a stage can never find room.
        RunError: a stage failed for a reason that is no data's fault, after Ray's own retries; Ray itself failed; or
            no result came for longer than the stages allow.
    """
    rest = iter(tasks)
    first = list(itertools.islice(rest, AT_ONCE))
    if not first:
        return
    ray = start_ray()
    _keep_off_the_terminal()
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    silence_s = max(stage.max_silence_s for stage in stages)
    context.execution_no_progress_timeout_s = silence_s
    # Processors set aside for each operator, whatever it has to do, would be idle ones.
    context.op_resource_reservation_ratio = _RESERVED
    for data in _results(ray, _packed_parts(first, rest), stages, silence_s, workers or Kept()):
        yield _unpack_task(data)


def _packed_parts(first: list[Task], rest: Iterator[Task]) -> Iterator[list[dict[str, bytes]]]:
    """Yield tasks as Ray carries them, many at a time."""
    part = first
    while part:
        packed = [_pack_task(Timed(task, {})) for task in part]
        part.clear()
        yield packed
        del packed
        part = list(itertools.islice(rest, AT_ONCE))


def _results(
    ray: Any,
    parts: Iterator[list[dict[str, bytes]]],
    stages: Sequence[Stage[Task]],
    silence_s: float,
    workers: Kept,
) -> Iterator[bytes]:
    """Yield pickled results; to unpickle them is the caller's work, as its errors are not Ray's."""
    stored, total = [], 0
    for items in parts:
        total += len(items)
        stored.append(_put_items(ray, items, silence_s))
    with in_words(ray, silence_s):
        dataset = stored[0].union(*stored[1:]) if len(stored) > 1 else stored[0]
        together = operators(reserve_resources(stages))
        for operator in together:
            dataset = _add(ray, dataset, operator)
        states = [_state(operator) for operator in together]
        if any(state.pooled for state in states):
            dataset.context.custom_execution_callback_classes = [
                replanning(Setup(states, total, cluster_nodes, workers))
            ]
        for item in dataset.iter_rows():
            yield item[_COLUMN]


def _put_items(ray: Any, items: list[dict[str, bytes]], silence_s: float) -> Any:
    """Return items as a dataset of Ray, which lies in its store."""
    with in_words(ray, silence_s):
        count = min(len(items), _MAX_BLOCKS)
        return ray.data.from_items(dealt(items, count), override_num_blocks=count)


def dealt(items: Sequence[Item], blocks: int) -> list[Item]:
    """Return items in the order in which blocks of neighbours hold every ``blocks``-th of them.

    Tasks come with the largest first. One core works through a block, and neighbours would be its largest.
    """
    return [item for first in range(blocks) for item in items[first::blocks]]


def _keep_off_the_terminal() -> None:
    """Leave Ray Data's log to its file: what fails reaches the caller as an exception."""
    log = logging.getLogger("ray.data")
    for handler in [each for each in log.handlers if isinstance(each, logging.StreamHandler)]:
        log.removeHandler(handler)


def reserve_resources(stages: Sequence[Stage[Task]]) -> list[Stage[Task]]:
    """Return the stages with the resources that their workers reserve on the cluster.

    See `reelweave.curate.run.runners.reservations`.

    Stages of one operator reserve the same.

    Raises:
        UsageError: one can never find room.
    """
    together = operators(stages)
    requested = {
        _name(operator): Resources(
            max(stage.cpus for stage in operator),
            max(stage.gpus for stage in operator),
            max(stage.memory_mb for stage in operator),
        )
        for operator in together
    }
    shares = fit_reservations(requested, cluster_nodes())
    return [
        replace(stage, cpus=share.cpus, gpus=share.gpus, memory_mb=share.memory_mb)
        for operator in together
        for stage, share in ((stage, shares[_name(operator)]) for stage in operator)
    ]


def _name(operator: Sequence[Stage[Task]]) -> str:
    return "+".join(stage.name for stage in operator)


def operators(stages: Sequence[Stage[Task]]) -> list[list[Stage[Task]]]:
    """Return the stages of each operator of Ray: neighbours that keep no workers together, the others alone."""
    return [
        part
        for keeps, group in itertools.groupby(stages, key=lambda stage: stage.keeps)
        for part in ([[stage] for stage in group] if keeps else [list(group)])
    ]


def _state(operator: Sequence[Stage[Task]]) -> StageState:
    """Return the state of an operator that has not begun."""
    first = operator[0]
    share = Resources(first.cpus, first.gpus, first.memory_mb)
    return StageState(_name(operator), share, first.keeps, first.batch, first.most)


def _add(ray: Any, dataset: Any, stages: list[Stage[Task]]) -> Any:
    first = stages[0]
    options: dict[str, Any] = {"batch_size": first.batch, "num_cpus": max(stage.cpus for stage in stages)}
    if gpus := max(stage.gpus for stage in stages):
        options["num_gpus"] = gpus
    if memory_mb := max(stage.memory_mb for stage in stages):
        options["memory"] = memory_mb * 1e6
    folder = ""
    with suppress(OSError):  # it was deleted
        folder = os.getcwd()  # noqa: PTH109 - as a text
    if not first.keeps:
        return dataset.map_batches(_OnBatches(stages, folder), **options)
    pool = ray.data.ActorPoolStrategy(size=1)  # until there is a plan
    return dataset.map_batches(_OnBatches, fn_constructor_args=(stages, folder), compute=pool, **options)


class _OnBatches(Generic[Task]):
    """Stages as Ray Data calls them: batches of pickled tasks in, one out at a time."""

    def __init__(self, stages: Sequence[Stage[Task]], folder: str) -> None:
        self._stages, self._folder = stages, folder
        self._needs = tuple(dict.fromkeys(path for stage in stages for path in stage.needs))

    def __call__(self, batch: Mapping[str, Iterable[bytes]]) -> Iterator[dict[str, list[bytes]]]:
        # Workers of a cluster begin in the folder where it was started; inputs and models may be relative to ours.
        enter_folder(self._folder, self._needs)
        tasks: list[Timed[Task]] = [_unpack_task(data) for data in batch[_COLUMN]]
        for task in _run(tasks, self._stages):
            yield {_COLUMN: [_pack_task(task)[_COLUMN]]}


_COLUMN = "task"


def _pack_task(task: Timed[Task]) -> dict[str, bytes]:
    return {_COLUMN: pickle.dumps(task, protocol=5)}


def _unpack_task(data: bytes) -> Timed[Any]:
    timed: Timed[Any] = pickle.loads(data)  # noqa: S301 - from our own workers, through Ray's memory
    return timed


def _time_stage(stage: Stage[Task], batch: Sequence[Timed[Task]]) -> Iterator[Timed[Task]]:
    """Yield the stage's results; the first one carries the seconds that the stages before spent on the batch."""
    spent: dict[str, float] = defaultdict(float)
    for before in batch:
        for name, seconds in before.seconds.items():
            spent[name] += seconds
    began = time.monotonic()
    for task in stage.function([before.task for before in batch]):
        spent[stage.name] += time.monotonic() - began
        yield Timed(task, dict(spent))
        spent.clear()
        began = time.monotonic()
