"""Plan iterations as cascades: makespans of all planners beside the bound, and where the gain comes from.

A trace is JSON: {"gpus": 64, "gpus_per_node": 8, "steps": [[{"frames": 81, "height": 720, "width": 1280}, {"tokens":
30000, "batch": 2}, ...], ...]}; samples that have only tokens have cached latents. A cost table has the columns
module, batch, frames, height, width, length, degree and seconds. More: docs/cascade.md.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loader.errors import RunError, UsageError
from pipelines.plans import execution as plan_execution
from pipelines.plans.execution import OnPaper
from pipelines.plans.problems import posed
from pipelines.terminal.console import print_json, stderr, stdout, table
from pipelines.terminal.files import write_whole

if TYPE_CHECKING:
    from train.cascade.problem import Problem
    from train.cascade.schedule import Schedule

_COMPARED = ("static-sp4", "static-sp8", "static-sp16", "static-lpt", "flexsp", "genetic", "sweep", "ours")
_OF_A_TRACE = ("static-lpt", "ours")
_BASELINE = "static-lpt"
_ALL = (*_COMPARED, "cp-sat")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--case",
        metavar="NAME",
        help="arachne, the paper's case study, or hunyuan-720p:SAMPLESxGPUS with samples drawn by the seed",
    )
    what.add_argument("--trace", type=Path, metavar="F", help="steps of samples, as JSON")
    parser.add_argument(
        "--planner",
        action="append",
        choices=_ALL,
        metavar="NAME",
        help=f"{', '.join(_ALL)}; may be given again; by default all but cp-sat,"
        f" for a trace {' and '.join(_OF_A_TRACE)}",
    )
    parser.add_argument("--plan-out", type=Path, metavar="F", help="write the chosen plan as JSON")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of samples and searches (0)")
    parser.add_argument(
        "--costs", type=Path, metavar="F", help="of a trace: a cost model as JSON; HunyuanVideo's by default"
    )
    parser.add_argument(
        "--cost-table",
        type=Path,
        metavar="F",
        help="of a trace: seconds by module, shape and degree, as CSV or JSON, instead of a cost model",
    )
    parser.add_argument(
        "--memory-gib",
        type=float,
        default=80.0,
        metavar="GIB",
        help="of a GPU, with --costs or --cost-table (80)",
    )
    parser.add_argument(
        "--degrees",
        metavar="K,K",
        help="of a trace: degrees that the DiT can have (1,2,3,4,6,8,12,16,24: HunyuanVideo's 24 heads), or all"
        " cascades with --cost-table (all of the table)",
    )
    plan_execution.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Plans with each planner, and prints what came out."""
    if options.seed < 0:
        raise UsageError(f"--seed is {options.seed}; it must not be negative")
    plan_execution.check(options)
    topology = plan_execution.topology_of(options.topology) if options.topology else None
    asked = posed(options, topology.links if topology else None)
    problems = asked.problems
    if options.step >= len(problems):
        raise UsageError(f"--step is {options.step}; the trace has steps 0 to {len(problems) - 1}")
    if topology:
        topology = plan_execution.with_room(topology, options.topology, problems[0].gpus)
    names = tuple(dict.fromkeys(options.planner or (_OF_A_TRACE if options.trace else _COMPARED)))
    made = {
        name: planned for name in names if (planned := _planned(name, problems, options.seed)) is not None
    }
    if not made:
        raise RunError(f"{', '.join(names)} found no plan: no degree of theirs suits all samples")
    baseline = made.get(_BASELINE) or _planned(_BASELINE, problems, options.seed)

    from train.cascade.planners.exact import tightened
    from train.cascade.planners.plan import WORTH, kept
    from train.cascade.scheduling.bound import lower_bound

    best = min(made, key=lambda name: made[name].makespan_s)
    schedules = made[best].schedules
    bounds_s = [
        tightened(problem, lower_bound(problem), schedule.makespan_s)
        for problem, schedule in zip(problems, schedules, strict=True)
    ]
    bound_s = sum(bounds_s) / len(problems)
    if baseline:
        schedules = [kept(*pair) for pair in zip(schedules, baseline.schedules, strict=True)]
    chosen = _Planned(schedules, made[best].plan_ms)
    static = sum(1 for one in schedules if baseline and any(one is other for other in baseline.schedules))
    shown = plan_execution.on_paper(schedules, asked, topology, options.noise, options.seed)
    problem = problems[0]
    steps = f"{len(problems)} steps, " if len(problems) > 1 else ""
    title = f"{options.case or options.trace}: {steps}{problem.samples} samples on {problem.gpus} GPUs"
    if options.plan_out:
        _write(options.plan_out, shown.planned, options.trace is not None)
    if options.timeline:
        plan_execution.draw(options, shown)
    if options.json:
        told = {name: one.told() for name, one in made.items()}
        said = {"planners": told, "lower_bound_s": bound_s, "chosen": chosen.told()}
        settings = {"topology": options.topology, "noise": options.noise}
        print_json({**said, "on_paper": {**settings, **shown.told()}})
        return 0
    sentence = f"chosen: {best}, {chosen.makespan_s:.2f} s, {chosen.idle:.1%} idle"
    if static:
        share = f"in {static} of {len(problems)} steps " if options.trace else ""
        sentence += f"; {share}the best static plan, which is within {WORTH:.0%} of it and needs no handoffs"
    _print(title, bound_s, made, baseline, sentence)
    if shown.executed:
        _print_execution(shown, options)
    if options.trace and not options.costs and not options.cost_table:
        stderr().print(
            "costs: HunyuanVideo's at 720p, calibrated to Arachne's case study; give your own with --costs or"
            " --cost-table",
            markup=False,
            soft_wrap=True,
        )
    return 0


class _Planned(NamedTuple):
    """What a planner made of all steps; times are means, and `plan_ms` is the processor's."""

    schedules: list["Schedule"]
    plan_ms: float

    @property
    def makespan_s(self) -> float:
        return sum(schedule.makespan_s for schedule in self.schedules) / len(self.schedules)

    @property
    def idle(self) -> float:
        total_s = sum(schedule.gpus * schedule.makespan_s for schedule in self.schedules)
        return 1 - sum(schedule.busy_s for schedule in self.schedules) / total_s

    def told(self) -> dict[str, float]:
        return {"makespan_s": self.makespan_s, "idle": self.idle, "plan_ms": self.plan_ms}


def _planned(name: str, problems: Sequence["Problem"], seed: int) -> _Planned | None:
    """None where the planner cannot plan one of the steps."""
    from train.cascade.paper.cases import arachne
    from train.cascade.planners.by_name import PLANNERS

    planner = PLANNERS[name]
    planner(arachne(), seed)  # compiled code is loaded at its first call
    schedules = []
    began = time.process_time()
    for number, problem in enumerate(problems):
        schedule = planner(problem, seed + number)
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
    write_whole(file, (json.dumps(rows) + "\n").encode(), "--plan-out")


def _print(
    title: str, bound_s: float, made: dict[str, _Planned], baseline: _Planned | None, chosen: str
) -> None:
    from train.cascade.paper.simulate import gain

    rows: list[tuple[object, ...]] = [("lower bound", f"{bound_s:.2f}", "", "", "", "", "")]
    for name, one in made.items():
        saved = ("", "")
        if baseline and one is not baseline:
            gained = gain(one.makespan_s, one.idle, baseline.makespan_s, baseline.idle)
            saved = (f"{gained.less_work_s:+.2f}", f"{gained.less_idle_s:+.2f}")
        over = f"{one.makespan_s / bound_s - 1:.1%}" if bound_s else ""
        rows.append((name, f"{one.makespan_s:.2f}", over, f"{one.idle:.1%}", *saved, f"{one.plan_ms:.1f}"))
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
