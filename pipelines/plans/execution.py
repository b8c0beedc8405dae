"""Placement, simulated execution and timeline of the cascades that `reelweave plan` chose."""

import argparse
import difflib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.plans.problems import Posed
from reelweave.pipelines.terminal.files import write_output

if TYPE_CHECKING:
    from reelweave.train.cascade.placement.topology import Topology
    from reelweave.train.cascade.schedule import Schedule

_PICTURES = (".json", ".svg", ".html")
_WILDEST = 2.0  # standard deviation of a logarithm; above it a mean says nothing


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options that place, execute and draw the chosen plan."""
    group.add_argument(
        "--topology",
        metavar="NAME|FILE",
        help="place the chosen plan on a cluster: dgx-h100, dgx-h200, pcie, single, or a YAML file",
    )
    group.add_argument(
        "--noise",
        type=float,
        metavar="SIGMA",
        help="simulate the chosen plan with times that spread by SIGMA (0.05: 5 %%; 0: as planned)",
    )
    group.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="draw the chosen plan, and with --noise its execution: .json for Perfetto, .svg or .html",
    )
    group.add_argument(
        "--step", type=int, default=0, metavar="N", help="step that --timeline draws (default: 0)"
    )


def check(options: argparse.Namespace, of_steps: bool) -> None:
    """Check these options before anything is planned.

    Args:
        options: parsed options of the command.
        of_steps: true if several steps may be planned, one of which is drawn.

    Raises:
        UsageError: an option has a wrong value.
    """
    noise, file = options.noise, options.timeline
    if noise is not None and not 0 <= noise <= _WILDEST:
        raise UsageError(f"--noise is {noise}; it goes from 0 to {_WILDEST:g}, as 0.05 for times 5 % off")
    if file and file.suffix.lower() not in _PICTURES:
        raise UsageError(f"--timeline {file}: its name ends in .json (for Perfetto), .svg or .html")
    if options.step < 0 or (options.step and not of_steps):
        raise UsageError(f"--step is {options.step}; it is a step of a dataset or a --trace, from 0")


def topology_of(named: str) -> "Topology":
    """Return a preset, or the topology of a file.

    Raises:
        UsageError: there is neither, or the file is wrong.
    """
    from reelweave.train.cascade.placement.topology import PRESETS, Topology

    if named in PRESETS:
        return PRESETS[named]
    if not Path(named).exists():
        close = difflib.get_close_matches(named, PRESETS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"--topology {named} is no file; {hint}presets are {', '.join(PRESETS)}")
    return resolve(Topology, Path(named), [])


def with_room(topology: "Topology", named: str, gpus: int) -> "Topology":
    """Return a topology that holds a plan: presets grow to as many nodes as it takes, files do not.

    Raises:
        UsageError: it has too few.
    """
    from reelweave.train.cascade.placement.topology import PRESETS

    if named in PRESETS:
        try:
            return topology.holding(gpus)
        except UsageError as error:
            raise UsageError(f"--topology {named}: {error}") from error
    if topology.gpus < gpus:
        nodes = math.ceil(gpus / topology.gpus_per_node)
        raise UsageError(
            f"--topology {named} has {topology.gpus} GPUs for a plan of {gpus}: it needs nodes: {nodes}"
        )
    return topology


class Figures(NamedTuple):
    """Means of an iteration over the steps.

    Attributes:
        iteration_s: seconds of a step.
        idle: idle share of the GPUs' time.
        flops_cv: coefficient of variation, over the GPUs, of what each computes in a step: of their TFLOPS.
    """

    iteration_s: float
    idle: float
    flops_cv: float


class OnPaper(NamedTuple):
    """The chosen plan and its simulated execution.

    Attributes:
        planned: schedules of all steps, on the GPUs that run them.
        executed: the schedules as executed; empty without noise.
        gpus_per_node: GPUs of a node of the cluster.
        posed: problems that were planned.
    """

    planned: "list[Schedule]"
    executed: "list[Schedule]"
    gpus_per_node: int
    posed: Posed

    def figures(self, schedules: "Sequence[Schedule]") -> Figures:
        """Return the means of plans or executions."""
        from reelweave.train.cascade.simulation.simulate import flops_cv

        total_s = sum(schedule.makespan_s for schedule in schedules)
        spread = [flops_cv(*pair) for pair in zip(schedules, self.posed.operations, strict=True)]
        idle = sum(schedule.idle * schedule.makespan_s for schedule in schedules) / total_s
        return Figures(total_s / len(schedules), idle, sum(spread) / len(spread))

    def as_json(self) -> dict[str, dict[str, float]]:
        """Return the figures as JSON values."""
        both = {"planned": self.planned, "executed": self.executed}
        return {name: self.figures(schedules)._asdict() for name, schedules in both.items() if schedules}

    def rows(self) -> list[tuple[str, ...]]:
        """Return table rows: name, seconds, idle, spread."""
        return [
            (name, f"{value['iteration_s']:.2f}", f"{value['idle']:.1%}", f"{value['flops_cv']:.3f}")
            for name, value in self.as_json().items()
        ]


def on_paper(
    schedules: "Sequence[Schedule]",
    posed: Posed,
    topology: "Topology | None",
    noise: float | None,
    seed: int,
) -> OnPaper:
    """Place plans and simulate their execution.

    Args:
        schedules: plans of all steps.
        posed: problems that they solve.
        topology: topology of the cluster; None: keep the planner's GPUs and communication costs.
        noise: standard deviation of the logarithms of times; None: nothing is executed.
        seed: seed of the noise.
    """
    import numpy as np

    from reelweave.train.cascade.placement.communication import communication
    from reelweave.train.cascade.placement.mapper import place
    from reelweave.train.cascade.simulation.simulate import Noise, execute

    planned = [place(schedule, topology) for schedule in schedules] if topology else list(schedules)
    executed = []
    for step, (planned_schedule, traffic) in enumerate(zip(planned, posed.traffic, strict=True)):
        if noise is None:
            break
        traffic_times = communication(planned_schedule, topology, traffic, posed.links) if topology else None
        factors_R = Noise(sigma=noise).factors(planned_schedule, np.random.default_rng([seed, step]))
        executed.append(execute(planned_schedule, factors_R, traffic_times))
    return OnPaper(planned, executed, posed.links.gpus_per_node, posed)


def draw(options: argparse.Namespace, shown: OnPaper, name: str) -> None:
    """Write the timeline of a step, in the format that the file's name says.

    Args:
        options: parsed options of the command.
        shown: the chosen plan and its execution.
        name: dataset, workload or trace, for the title.

    Raises:
        UsageError: the file cannot be written.
    """
    from reelweave.train.cascade.simulation import timeline

    file, step, size = options.timeline, options.step, shown.gpus_per_node
    panels = [timeline.Panel("planned", shown.planned[step])]
    if shown.executed:
        noise = f"executed, times {100 * options.noise:g} % off"
        panels.append(timeline.Panel(noise, shown.executed[step]))
    where = f" on {options.topology}" if options.topology else ""
    title = f"{name}{where}"
    if file.suffix.lower() == ".json":
        text = json.dumps(timeline.trace(panels, size))
    elif file.suffix.lower() == ".svg":
        text = timeline.picture(panels, title, size)
    else:
        text = timeline.page(panels, title, size)
    write_output(file, (text.rstrip() + "\n").encode(), "--timeline")
