"""Scheduling problems of `reelweave plan --cascades`: the iteration of a case, or the steps of a trace."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.pipelines.terminal.files import read_text

if TYPE_CHECKING:
    from reelweave.loader.base.arrays import Floats
    from reelweave.train.cascade.costs.cost_model import CostModel, Links, SampleShapes
    from reelweave.train.cascade.placement.communication import Traffic
    from reelweave.train.cascade.problem import Problem
    from reelweave.train.cascade.simulation.trace import Trace

_Step = TypeVar("_Step")
_GPU_GIB = 80.0


class Posed(NamedTuple):
    """Planning problems, one for each iteration.

    Attributes:
        problems: one for each step.
        operations: seconds of one GPU that each cascade computes, of each step, float64 [S, M].
        traffic: bytes that cascades exchange and hand over, of each step.
        links: assumed by the times.
    """

    problems: "list[Problem]"
    operations: "list[Floats]"
    traffic: "list[Traffic]"
    links: "Links"


def pose_problems(options: argparse.Namespace, links: "Links | None", steps: "Trace | None") -> Posed:
    """Return the iterations to plan.

    Args:
        options: parsed options of the command.
        links: links of the cluster; None: those of the costs, with the trace's GPUs per node.
        steps: steps of a dataset or a workload; None: those of the case or trace in the options.

    Raises:
        UsageError: an option or a file is wrong; names the step that cannot run.
    """
    from reelweave.train.cascade.simulation.cases import DEGREES, HUNYUAN_720P, MEMORY_TOKENS, case_samples

    # A case of the paper has its own costs, GPUs and degrees.
    if steps is None and options.trace is None:
        for name in ("costs", "cost_table", "degrees", "memory_gib"):
            if getattr(options, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} goes with a dataset or --trace: {options.what} has its own"
                )
        samples, gpus = case_samples(options.what, options.seed)
        costs = HUNYUAN_720P.model_copy(update={"links": links}) if links else HUNYUAN_720P
        return _count_problems([samples], costs, gpus, DEGREES, float(MEMORY_TOKENS), options.what)
    from reelweave.loader.buckets.tokens import COMPRESSIONS
    from reelweave.train.cascade.simulation.trace import read_trace

    # Steps of a dataset, a workload or a trace, with costs from a table, a fit or the paper.
    name, trace = str(options.trace or options.what), steps or read_trace(options.trace)
    degrees = _degrees(options.degrees) if options.degrees else None
    if options.cost_table:
        return _looked_up(options, trace, degrees, links)
    costs, memory_bytes = HUNYUAN_720P, float(MEMORY_TOKENS)
    if options.costs:
        costs, memory_bytes = _cost_model(options.costs), _memory_gib(options, degrees or DEGREES) * 2**30
    elif options.memory_gib is not None:
        raise UsageError(
            f"--memory-gib goes with --costs or --cost-table; without them a GPU holds {MEMORY_TOKENS:,} tokens"
        )
    links = links or costs.links.model_copy(update={"gpus_per_node": trace.gpus_per_node})
    costs = costs.model_copy(update={"links": links})
    compression = costs.compression or COMPRESSIONS["hunyuanvideo"]
    try:
        samples_of_steps = trace.samples(compression, costs.text_tokens)
    except UsageError as error:
        raise UsageError(f"{name}, {error}") from error
    return _count_problems(samples_of_steps, costs, trace.gpus, degrees or DEGREES, memory_bytes, name)


def _count_problems(
    steps: "list[SampleShapes]",
    costs: "CostModel",
    gpus: int,
    degrees: tuple[int, ...],
    memory_bytes: float,
    name: str,
) -> Posed:
    """Return the problems of a cost model."""
    from reelweave.train.cascade.placement.communication import Traffic
    from reelweave.train.cascade.simulation.trace import arithmetic

    return Posed(
        _each(steps, lambda samples: costs.problem(samples, gpus, degrees, memory_bytes), name),
        [arithmetic(costs, samples) for samples in steps],
        [Traffic.of(costs, samples) for samples in steps],
        costs.links,
    )


def _looked_up(
    options: argparse.Namespace, trace: "Trace", degrees: tuple[int, ...] | None, links: "Links | None"
) -> Posed:
    """Return the problems of an explicit table, in whose times all communication is."""
    import numpy as np

    from reelweave.train.cascade.costs.cost_model import Links
    from reelweave.train.cascade.placement.communication import Traffic
    from reelweave.train.cascade.simulation.cost_table import read_cost_table

    if options.costs:
        raise UsageError("--costs and --cost-table are two ways of telling costs: give one of them")
    table = read_cost_table(
        read_text(options.cost_table, "--cost-table"), f"--cost-table {options.cost_table}"
    )
    memory_gib = _memory_gib(options, degrees or ())
    problems = _each(
        trace.steps,
        lambda step: table.problem(step, trace.gpus, degrees, memory_gib),
        str(options.trace or options.what),
    )
    # The cheapest degree communicates least, so that its time is nearest to the arithmetic alone.
    work = [np.where(problem.has_SM, problem.work_SMK.min(axis=2), 0.0) for problem in problems]
    none = [Traffic(np.zeros_like(work_SM), np.zeros_like(work_SM)) for work_SM in work]
    return Posed(problems, work, none, links or Links(gpus_per_node=trace.gpus_per_node))


def _memory_gib(options: argparse.Namespace, degrees: "Iterable[int]") -> float:
    """Return the memory that plans may use: by default what communicators leave of a GPU of 80 GiB."""
    from reelweave.train.cascade.menu import communicator_bytes

    if options.memory_gib is not None:
        return float(options.memory_gib)
    return _GPU_GIB - communicator_bytes(degrees) / 2**30


def _each(steps: "Iterable[_Step]", posing: "Callable[[_Step], Problem]", name: str) -> "list[Problem]":
    """Return the problem of each step; errors name the step."""
    problems = []
    for index, step in enumerate(steps):
        try:
            problems.append(posing(step))
        except UsageError as error:
            raise UsageError(f"{name}, step {index}: {error}") from error
    return problems


def _cost_model(file: Path) -> "CostModel":
    from reelweave.train.cascade.costs.cost_model import CostModel

    try:
        return CostModel.model_validate_json(read_text(file, "--costs"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"--costs {file}{f', key {where}' if where else ''}: {first['msg']}") from error


def _degrees(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and 0 < int(part) <= 65_536 for part in parts):
        raise UsageError(f"--degrees {text}: give whole numbers such as 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))
