"""Cascade schedules of a plan: makespan of each planner beside the bound, and where the gain comes from."""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from reelweave.loader.errors import RunError, UsageError
from reelweave.pipelines.plans import execution as plan_execution
from reelweave.pipelines.plans.execution import OnPaper
from reelweave.pipelines.plans.problems import pose_problems
from reelweave.pipelines.terminal.console import print_json, stderr, stdout, table
from reelweave.pipelines.terminal.files import write_output
from reelweave.train.cascade.planners.by_name import PLANNERS, SLOW

if TYPE_CHECKING:
    from reelweave.train.cascade.problem import Problem
    from reelweave.train.cascade.schedule import Schedule
    from reelweave.train.cascade.simulation.trace import Trace

_OF_STEPS = ("static-lpt", "ours")
_BASELINE = "static-lpt"


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options of cascades."""
    group.add_argument(
        "--planner",
        action="append",
        choices=tuple(PLANNERS),
        metavar="NAME",
        help=f"planner to compare, repeatable: {', '.join(PLANNERS)} (default: all but {', '.join(SLOW)};"
        f" of steps {' and '.join(_OF_STEPS)})",
    )
    group.add_argument(
        "--costs",
        type=Path,
        metavar="FILE",
        help="cost model as JSON, from `reelweave fit --cascades` (default: HunyuanVideo's)",
    )
    group.add_argument(
        "--cost-table",
        type=Path,
        metavar="FILE",
        help="CSV or JSON of seconds in place of a cost model: columns module, batch, frames, height, width, length,"
        " degree, seconds",
    )
    group.add_argument(
        "--memory-gib",
        type=float,
        metavar="GIB",
        help="memory of a GPU that plans may use, with --costs or --cost-table (default: 80, less what"
        " communicators take at most)",
    )
    group.add_argument(
        "--degrees",
        metavar="K,K",
        help="sequence-parallel degrees of the DiT, or with --cost-table of all modules (default:"
        " 1,2,3,4,6,8,12,16,24, which 24 heads allow; those of the table)",
    )
    plan_execution.add_arguments(group)


def run(options: argparse.Namespace, steps: "Trace | None" = None) -> int:
    """Plan with each planner and print the comparison.

    Args:
        options: parsed options of the command.
        steps: steps of a dataset or a workload; None: those of the case or trace in the options.

    Raises:
        UsageError: an option or a file is wrong.
        RunError: no planner found a plan.
    """
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}; it must not be negative")
    if options.memory_gib is not None and not 0 < options.memory_gib < math.inf:
        raise UsageError(f"--memory-gib is {options.memory_gib:g}; it must be above 0")
    # Steps to plan, and the cluster to place them on.
    title = str(options.what or options.trace)
    of_steps = options.trace is not None or steps is not None
    plan_execution.check(options, of_steps)
    topology = plan_execution.topology_of(options.topology) if options.topology else None
    posed_steps = pose_problems(options, topology.links if topology else None, steps)
    problems = posed_steps.problems
    if options.step >= len(problems):
        raise UsageError(f"--step is {options.step}; there are steps 0 to {len(problems) - 1}")
    if topology:
        topology = plan_execution.with_room(topology, options.topology, problems[0].gpus)
    # All planners asked for, beside the baseline of one degree.
    compared = [name for name in PLANNERS if name not in SLOW]
    names = tuple(dict.fromkeys(options.planner or (_OF_STEPS if of_steps else compared)))
    with stderr().status("planning; the first plan on a machine compiles the planners, for half a minute"):
        planned_by = {
            name: _plan_steps(name, problems, options.seed) for name in dict.fromkeys([*names, _BASELINE])
        }
    feasible = {name: planned for name in names if (planned := planned_by[name]) is not None}
    if not feasible:
        raise RunError(f"{', '.join(names)} found no plan: no degree of theirs suits all samples")
    baseline = planned_by[_BASELINE]

    from reelweave.train.cascade.planners.exact import tighten_bound
    from reelweave.train.cascade.planners.plan import choose_schedule
    from reelweave.train.cascade.scheduling.bound import lower_bound

    # The best plan, its distance from the lower bound, and where the baseline is as good.
    best = min(feasible, key=lambda name: feasible[name].makespan_s)
    schedules = feasible[best].schedules
    bounds_s = [
        tighten_bound(problem, lower_bound(problem), schedule.makespan_s)
        for problem, schedule in zip(problems, schedules, strict=True)
    ]
    bound_s = sum(bounds_s) / len(problems)
    if baseline:
        schedules = [choose_schedule(*pair) for pair in zip(schedules, baseline.schedules, strict=True)]
    chosen = _Planned(schedules, feasible[best].plan_ms)
    static = sum(
        1 for schedule in schedules if baseline and any(schedule is other for other in baseline.schedules)
    )
    # Simulate what was chosen, and write what options ask for.
    shown = plan_execution.on_paper(schedules, posed_steps, topology, options.noise, options.seed)
    problem = problems[0]
    several = f"{len(problems)} steps, " if len(problems) > 1 else ""
    headline = f"{title}: {several}{problem.samples} samples on {problem.gpus} GPUs"
    if options.plan_out:
        _write(options.plan_out, shown.planned, of_steps)
    if options.timeline:
        plan_execution.draw(options, shown, f"{title}, step {options.step}" if of_steps else title)
    if options.json:
        planners = {name: planned.as_json() for name, planned in feasible.items()}
        result = {"planners": planners, "lower_bound_s": bound_s, "chosen": chosen.as_json()}
        settings = {"topology": options.topology, "noise": options.noise}
        print_json({**result, "on_paper": {**settings, **shown.as_json()}})
        return 0
    _print(headline, bound_s, feasible, baseline, _choice(best, feasible[best], chosen, static))
    if shown.executed:
        _print_execution(shown, options)
    if of_steps and not options.costs and not options.cost_table:
        stderr().print(
            "costs: HunyuanVideo's at 720p, calibrated to Arachne's case study; give your own with --costs or"
            " --cost-table",
            markup=False,
            soft_wrap=True,
        )
    return 0


def _choice(best: str, planned: "_Planned", chosen: "_Planned", static: int) -> str:
    """Return the sentence that names the chosen plan.

    Args:
        best: planner with the shortest plans.
        planned: its plans.
        chosen: plans that are kept, of which some are static ones.
        static: number of static ones.
    """
    from reelweave.train.cascade.planners.plan import WORTH

    everywhere = static == len(chosen.schedules)
    message = (
        f"chosen: {_BASELINE if everywhere else best}, {chosen.makespan_s:.2f} s, {chosen.idle:.1%} idle"
    )
    if not static or best == _BASELINE:
        return message
    if everywhere:
        return (
            f"{message}: within {WORTH:.0%} of {best} ({planned.makespan_s:.2f} s), and it needs no handoffs"
        )
    why = f"{_BASELINE}, which is within {WORTH:.0%} of it and needs no handoffs"
    return f"{message}; in {static} of {len(chosen.schedules)} steps {why}"


class _Planned(NamedTuple):
    """Schedules of all steps by one planner; times are means, and `plan_ms` is processor time."""

    schedules: list["Schedule"]
    plan_ms: float

    @property
    def makespan_s(self) -> float:
        return sum(schedule.makespan_s for schedule in self.schedules) / len(self.schedules)

    @property
    def idle(self) -> float:
        total_s = sum(schedule.gpus * schedule.makespan_s for schedule in self.schedules)
        return max(0.0, 1 - sum(schedule.busy_s for schedule in self.schedules) / total_s)

    def as_json(self) -> dict[str, float]:
        return {"makespan_s": self.makespan_s, "idle": self.idle, "plan_ms": self.plan_ms}


def _plan_steps(name: str, problems: Sequence["Problem"], seed: int) -> _Planned | None:
    """Return the schedules of all steps, or None if the planner cannot plan one of them."""
    from reelweave.train.cascade.simulation.cases import arachne

    planner = PLANNERS[name]
    planner(arachne(), seed)  # compiled code is loaded at its first call
    schedules = []
    began = time.process_time()
    for index, problem in enumerate(problems):
        schedule = planner(problem, seed + index)
        if schedule is None:
            return None
        schedules.append(schedule)
    return _Planned(schedules, (time.process_time() - began) * 1e3 / len(problems))


def _write(file: Path, schedules: Sequence["Schedule"], of_steps: bool) -> None:
    rows = [
        {"step": step, **row} if of_steps else row
        for step, schedule in enumerate(schedules)
        for row in schedule.rows()
    ]
    write_output(file, (json.dumps(rows) + "\n").encode(), "--plan-out")


def _print(
    title: str, bound_s: float, planned: dict[str, _Planned], baseline: _Planned | None, chosen: str
) -> None:
    from reelweave.train.cascade.simulation.simulate import gain

    rows: list[tuple[object, ...]] = [("lower bound", f"{bound_s:.2f}", "", "", "", "", "")]
    for name, outcome in planned.items():
        saved = ("", "")
        if baseline and outcome is not baseline:
            gained = gain(outcome.makespan_s, outcome.idle, baseline.makespan_s, baseline.idle)
            saved = (f"{gained.less_work_s:+.2f}", f"{gained.less_idle_s:+.2f}")
        over = f"{outcome.makespan_s / bound_s - 1:.1%}" if bound_s else ""
        rows.append(
            (name, f"{outcome.makespan_s:.2f}", over, f"{outcome.idle:.1%}", *saved, f"{outcome.plan_ms:.1f}")
        )
    columns = ("planner", "seconds", "over bound", "idle", "less work", "less idle", "plan ms")
    out = stdout()
    out.print(table(title, columns, rows))
    out.print(chosen, markup=False, soft_wrap=True)
    if baseline:
        out.print(
            f"less work, less idle: the seconds by which a plan is shorter than {_BASELINE}, the best static one,"
            " because its cascades take fewer GPU-seconds, and because GPUs wait less.",
            markup=False,
            soft_wrap=True,
        )


def _print_execution(shown: OnPaper, options: argparse.Namespace) -> None:
    where = f" on {options.topology}" if options.topology else ""
    title = f"the chosen plan on paper{where}, times {100 * options.noise:g} % off"
    out = stdout()
    out.print(table(title, ("", "seconds", "idle", "CV of TFLOPS"), shown.rows()))
    out.print(
        "CV of TFLOPS: of what each GPU computes in an iteration, deviation over mean; noise does not change it.",
        markup=False,
        soft_wrap=True,
    )
