"""What becomes of the plan that `reelweave plan` chose: placed on a cluster, executed on paper, as a picture."""

import argparse
import difflib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loader.errors import UsageError
from pipelines.configuration.config import resolve
from pipelines.plans.problems import Posed
from pipelines.terminal.files import write_whole

if TYPE_CHECKING:
    from train.cascade.placement.topology import Topology
    from train.cascade.schedule import Schedule

_PICTURES = (".json", ".svg", ".html")
_WILDEST = 2.0  # standard deviation of a logarithm; above it a mean says nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of what becomes of the chosen plan."""
    parser.add_argument(
        "--topology",
        metavar="NAME|F",
        help="place the chosen plan on this cluster: dgx-h100, dgx-h200, pcie, single, or a file in YAML",
    )
    parser.add_argument(
        "--noise",
        type=float,
        metavar="SIGMA",
        help="execute the chosen plan on paper, with times that spread by so much; 0: as planned",
    )
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="F",
        help="draw the chosen plan, and its execution with --noise: .json for Perfetto, .svg or .html to look at",
    )
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="of a trace, that --timeline shows (0)"
    )


def check(options: argparse.Namespace) -> None:
    """Before anything is planned.

    Raises:
        UsageError: an option has a wrong value.
    """
    noise, file = options.noise, options.timeline
    if noise is not None and not 0 <= noise <= _WILDEST:
        raise UsageError(f"--noise is {noise}; it goes from 0 to {_WILDEST:g}, as 0.05 for times 5 % off")
    if file and file.suffix.lower() not in _PICTURES:
        raise UsageError(f"--timeline {file}: its name ends in .json (for Perfetto), .svg or .html")
    if options.step < 0 or (options.step and not options.trace):
        raise UsageError(f"--step is {options.step}; it is a step of a --trace, from 0")


def topology_of(named: str) -> "Topology":
    """A preset, or what a file holds.

    Raises:
        UsageError: there is neither, or the file is wrong.
    """
    from train.cascade.placement.topology import PRESETS, Topology

    if named in PRESETS:
        return PRESETS[named]
    if not Path(named).exists():
        close = difflib.get_close_matches(named, PRESETS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"--topology {named} is no file; {hint}presets are {', '.join(PRESETS)}")
    return resolve(Topology, Path(named), [])


def with_room(topology: "Topology", named: str, gpus: int) -> "Topology":
    """A preset with as many nodes as a plan takes; a file has those that it names.

    Raises:
        UsageError: it has too few.
    """
    from train.cascade.placement.topology import PRESETS

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
    """Means over the steps.

    Attributes:
        iteration_s: seconds of a step.
        idle: share of the GPUs' time.
        flops_cv: coefficient of variation, over the GPUs, of what each computes in a step: of their TFLOPS.
    """

    iteration_s: float
    idle: float
    flops_cv: float


class OnPaper(NamedTuple):
    """The chosen plan, and what came of it.

    Attributes:
        planned: schedules of all steps, on the GPUs that run them.
        executed: the same as they came out; none without noise.
        gpus_per_node: of the cluster.
        posed: that was planned.
    """

    planned: "list[Schedule]"
    executed: "list[Schedule]"
    gpus_per_node: int
    posed: Posed

    def figures(self, schedules: "Sequence[Schedule]") -> Figures:
        """Of the plans or of the executions."""
        from train.cascade.paper.simulate import flops_cv

        total_s = sum(one.makespan_s for one in schedules)
        spread = [flops_cv(*pair) for pair in zip(schedules, self.posed.operations, strict=True)]
        idle = sum(one.idle * one.makespan_s for one in schedules) / total_s
        return Figures(total_s / len(schedules), idle, sum(spread) / len(spread))

    def told(self) -> dict[str, dict[str, float]]:
        """As JSON values."""
        both = {"planned": self.planned, "executed": self.executed}
        return {name: self.figures(schedules)._asdict() for name, schedules in both.items() if schedules}

    def rows(self) -> list[tuple[str, ...]]:
        """Of a table: name, seconds, idle, spread."""
        return [
            (name, f"{one['iteration_s']:.2f}", f"{one['idle']:.1%}", f"{one['flops_cv']:.3f}")
            for name, one in self.told().items()
        ]


def on_paper(
    schedules: "Sequence[Schedule]",
    posed: Posed,
    topology: "Topology | None",
    noise: float | None,
    seed: int,
) -> OnPaper:
    """Places plans and executes them.

    Args:
        schedules: of all steps.
        posed: that they are plans of.
        topology: of the cluster; None: GPUs as the planner named them, and places cost what it counted with.
        noise: standard deviation of the logarithms of times; None: nothing is executed.
        seed: of the noise.
    """
    import numpy as np

    from train.cascade.paper.simulate import Noise, execute
    from train.cascade.placement.communication import communication
    from train.cascade.placement.mapper import place

    planned = [place(one, topology) for one in schedules] if topology else list(schedules)
    executed = []
    for number, (one, traffic) in enumerate(zip(planned, posed.traffic, strict=True)):
        if noise is None:
            break
        places = communication(one, topology, traffic, posed.links) if topology else None
        factors_R = Noise(sigma=noise).factors(one, np.random.default_rng([seed, number]))
        executed.append(execute(one, factors_R, places))
    return OnPaper(planned, executed, posed.links.gpus_per_node, posed)


def draw(options: argparse.Namespace, shown: OnPaper) -> None:
    """Writes the timeline of a step, in the format that the file's name says.

    Raises:
        UsageError: the file cannot be written.
    """
    from train.cascade.paper import timeline

    file, step, size = options.timeline, options.step, shown.gpus_per_node
    panels = [timeline.Panel("planned", shown.planned[step])]
    if shown.executed:
        noise = f"executed, times {100 * options.noise:g} % off"
        panels.append(timeline.Panel(noise, shown.executed[step]))
    of_step = f", step {step}" if options.trace else ""
    where = f" on {options.topology}" if options.topology else ""
    title = f"{options.case or options.trace}{of_step}{where}"
    if file.suffix.lower() == ".json":
        text = json.dumps(timeline.trace(panels, size))
    elif file.suffix.lower() == ".svg":
        text = timeline.picture(panels, title, size)
    else:
        text = timeline.page(panels, title, size)
    write_whole(file, (text.rstrip() + "\n").encode(), "--timeline")
