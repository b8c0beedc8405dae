"""Arachne's own planning problems, played with our planner beside Arachne's and FlexSP's recorded plans.

    python -m tests.bench.arachne_plans FOLDER [--seeds 4] [--drawn 200] [--only problems|menu|drawn|noise]

FOLDER holds ``problems.json`` (a list of ``id``, ``gpus``, ``resolution``, ``samples`` of ``batch`` and ``frames``,
``plans`` by name with ``makespan_s`` and ``runs``, perhaps ``reference`` with ``degrees`` and ``best_known_s``) and the
cost tables ``costs_hunyuan_720p.json`` and ``costs_hunyuan_1080p_derived.json`` (``columns``, ``rows``; the column
``kind`` says which rows are recorded). Prints the tables of docs/benchmarks/arachne_plans.md as Markdown.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.planners.by_name import PLANNERS
from reelweave.train.cascade.planners.exact import tighten_bound
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.simulation.cost_table import CostTable, read_cost_table
from reelweave.train.cascade.simulation.simulate import Noise, execute
from reelweave.train.cascade.simulation.trace import TraceBatch
from tests.bench.planners import heading, percent, prepared, row
from tests.train.cascade.check import violations

OTHERS = ("static-sp4", "static-sp8", "static-sp16", "static-lpt", "flexsp", "genetic", "sweep")
RECORDED = ("recorded", "divided")
"""Rows that recorded plans were made with; the others of the table are estimates."""
ALL_DEGREES = (1, 2, 4, 6, 8, 12)
EXECUTED_OVER_PLAN = 1.20
"""What executed iterations took of their plans, on average of the 20 that have both (1.04 to 1.63)."""
DRAWS = 10
SAME = 1e-5


class Case(NamedTuple):
    """A problem and what is known of it.

    Attributes:
        name: of the problem.
        tuned: whether the planner was tuned on it: half of them, by the hash of the name.
        problem: to plan.
        plans: recorded makespans, by planner.
        best_known_s: of CP-SAT, annealing and a genetic search together; None: not searched.
    """

    name: str
    tuned: bool
    problem: Problem
    plans: dict[str, float]
    best_known_s: float | None


class Tables(NamedTuple):
    """Cost tables of the folder: recorded rows of 720p, all rows of it, rows of 1080p."""

    recorded: CostTable
    all: CostTable
    large: CostTable


class Played(NamedTuple):
    """Result of our planner.

    Attributes:
        case: that was played.
        makespan_s: of the first seed.
        worst_s: of all seeds.
        bound_s: proven by the first, or by searches that find nothing.
        area_s: lower bound by work and chains alone.
        ms: processor time of the first.
        others_s: best makespan of the other planners.
    """

    case: Case
    makespan_s: float
    worst_s: float
    bound_s: float
    area_s: float
    ms: float
    others_s: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--drawn", type=int, default=200)
    parser.add_argument("--only", choices=("problems", "menu", "drawn", "noise"))
    options = parser.parse_args()
    tables = read_tables(options.folder)
    posed = cases(options.folder, tables)
    plan(posed[0].problem)  # compiled code is loaded at its first call
    plan(posed[-1].problem)
    if options.only in (None, "problems"):
        played = [play(case, options.seeds) for case in posed]
        summary(played)
        every(played)
    if options.only in (None, "menu"):
        by_menu(posed)
    if options.only in (None, "drawn"):
        drawn(tables, options.drawn)
    if options.only in (None, "noise"):
        noise(posed)


def read_tables(folder: Path) -> Tables:
    """Read the cost tables of a folder."""

    def table(name: str, kinds: Sequence[str]) -> CostTable:
        held = json.loads((folder / name).read_text())
        place = held["columns"].index("kind")
        rows = [one for one in held["rows"] if not kinds or one[place] in kinds]
        return read_cost_table(json.dumps({"columns": held["columns"], "rows": rows}), name)

    small, large = "costs_hunyuan_720p.json", "costs_hunyuan_1080p_derived.json"
    return Tables(table(small, RECORDED), table(small, ()), table(large, ()))


def cases(folder: Path, tables: Tables) -> list[Case]:
    """Read the problems of a folder."""
    found = []
    for one in json.loads((folder / "problems.json").read_text()):
        step = [TraceBatch(**sample) for sample in one["samples"]]
        reference = one.get("reference")
        if reference:
            problem = tables.recorded.problem(step, one["gpus"], reference["degrees"])
        else:
            table = tables.large if one["resolution"] == "1080p" else tables.all
            problem = table.problem(step, one["gpus"], ALL_DEGREES)
        plans = {name: plan_["makespan_s"] for name, plan_ in one["plans"].items() if "runs" in plan_}
        if "arachne" in plans:
            plans["within nodes"] = one["plans"]["arachne"]["same_node_s"]
        best = reference["best_known_s"] if reference else None
        name = one["id"].removeprefix("hunyuan-")
        found.append(Case(name, _tuned(one["id"]), prepared(problem), plans, best))
    return found


def _tuned(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


def play(case: Case, seeds: int) -> Played:
    """Plan a case with several seeds, and with all other planners."""
    began = time.process_time()
    first = plan(case.problem, 0)
    ms = (time.process_time() - began) * 1e3
    found = [first.best, *(plan(case.problem, seed).best for seed in range(1, seeds))]
    assert not any(violations(case.problem, one) for one in found)
    others = [one for name in OTHERS if (one := PLANNERS[name](case.problem, 0))]
    return Played(
        case,
        found[0].makespan_s,
        max(one.makespan_s for one in found),
        tighten_bound(case.problem, first.bound_s, first.best.makespan_s),
        lower_bound(case.problem),
        ms,
        min(one.makespan_s for one in others),
    )


def summary(played: Iterable[Played]) -> None:
    """Means by resolution, number of GPUs and half."""
    print("\nsummary\n")
    heading(
        "problems",
        "half",
        "number",
        "of Arachne's",
        "of Arachne's within nodes",
        "better / equal / worse",
        "of FlexSP's",
        "over best known: mean",
        "most",
        "most, any seed",
        "worse than a planner of ours",
        "proven optimal",
        "area bound to ours",
        "proven bound to ours",
        "ms: median",
        "most",
    )
    kinds: dict[tuple[str, str], list[Played]] = {}
    for one in played:
        kind = f"{one.case.name.split('-')[0]}, {one.case.problem.gpus} GPUs"
        for half in ("tuned on" if one.case.tuned else "kept back", "all"):
            kinds.setdefault((kind, half), []).append(one)
    for (kind, half), group in sorted(kinds.items(), key=lambda item: (item[0][0], item[0][1])):
        arachne, within, flexsp = (
            [one.makespan_s / one.case.plans[name] for one in group if name in one.case.plans]
            for name in ("arachne", "within nodes", "flexsp")
        )
        known = [one for one in group if one.case.best_known_s]
        over = [one.makespan_s / one.case.best_known_s - 1 for one in known if one.case.best_known_s]
        worst = [one.worst_s / one.case.best_known_s - 1 for one in known if one.case.best_known_s]
        sides = [
            sum(share < 1 - SAME for share in within),
            sum(abs(share - 1) <= SAME for share in within),
            sum(share > 1 + SAME for share in within),
        ]
        row(
            kind,
            half,
            str(len(group)),
            _mean(arachne),
            _mean(within),
            " / ".join(map(str, sides)) if arachne else "",
            _mean(flexsp),
            percent(float(np.mean(over))) if over else "",
            percent(max(over)) if over else "",
            percent(max(worst)) if worst else "",
            str(sum(one.makespan_s > one.others_s * (1 + SAME) for one in group)),
            str(sum(one.makespan_s <= one.bound_s * (1 + SAME) for one in group)),
            percent(float(np.mean([one.makespan_s / one.area_s - 1 for one in group]))),
            percent(float(np.mean([one.makespan_s / one.bound_s - 1 for one in group]))),
            f"{np.median([one.ms for one in group]):.1f}",
            f"{max(one.ms for one in group):.1f}",
        )


def _mean(shares: Sequence[float]) -> str:
    return f"{np.mean(shares):.3f}" if shares else ""


def every(played: Iterable[Played]) -> None:
    """All problems."""
    print("\nevery problem\n")
    heading(
        "problem",
        "half",
        "Arachne's s",
        "FlexSP's s",
        "best known s",
        "best other of ours s",
        "ours s",
        "bound s",
        "ms",
    )
    for one in played:
        plans, best = one.case.plans, one.case.best_known_s
        row(
            one.case.name,
            "tuned on" if one.case.tuned else "kept back",
            *(f"{plans[name]:.3f}" if name in plans else "" for name in ("arachne", "flexsp")),
            f"{best:.3f}" if best else "",
            f"{one.others_s:.3f}",
            f"{one.makespan_s:.3f}",
            f"{one.bound_s:.3f}",
            f"{one.ms:.1f}",
        )


def by_menu(posed: Iterable[Case]) -> None:
    """Plans whose groups are those of the fixed menu, beside plans with free groups."""
    print("\ngroups of the menu\n")
    heading("problem", "degrees", "groups", "best recorded s", "free s", "menu s", "of free", "ms")
    shares, worse = [], 0
    for case in posed:
        problem = case.problem
        menu = GroupMenu.of(problem.gpus, problem.degrees_K)
        began = time.process_time()
        ours = plan(problem, menu=menu).best
        ms = (time.process_time() - began) * 1e3
        assert not violations(problem, ours)
        assert not menu.strangers(ours)
        free_s, recorded_s = plan(problem).best.makespan_s, min(case.plans.values(), default=np.inf)
        shares.append(ours.makespan_s / free_s)
        worse += ours.makespan_s > recorded_s * (1 + SAME)
        if shares[-1] > 1 + SAME:
            degrees = ", ".join(map(str, problem.degrees_K.tolist()))
            seconds = (f"{one:.3f}" if one < np.inf else "" for one in (recorded_s, free_s, ours.makespan_s))
            row(case.name, degrees, str(len(menu.groups())), *seconds, f"{shares[-1]:.4f}", f"{ms:.1f}")
    same = sum(share <= 1 + SAME for share in shares)
    print(
        f"\n{len(shares)} problems: {same} no longer than with free groups, {np.mean(shares):.4f} of them on average,"
        f" {max(shares):.4f} at most; {worse} longer than a recorded plan"
    )


def drawn(tables: Tables, count: int) -> None:
    """Samples drawn from the rows of the tables."""
    print("\ndrawn from the tables' rows\n")
    heading(
        "rows",
        "samples / GPUs",
        "number",
        "proven optimal",
        "over the bound: mean",
        "most",
        "worse than a planner of ours",
        "ms: median",
        "p90",
        "p99",
    )
    kinds = (
        ("720p, recorded", tables.recorded, ALL_DEGREES[:-1], 4, 16),
        ("720p, all", tables.all, ALL_DEGREES, 4, 16),
        ("1080p", tables.large, ALL_DEGREES, 4, 16),
        ("720p, all", tables.all, ALL_DEGREES, 8, 32),
    )
    for name, table, degrees, samples, gpus in kinds:
        number = count if samples == 4 else count // 10
        made = [_drawn(table, degrees, samples, gpus, seed) for seed in range(number)]
        over, ms, worse = [], [], 0
        for seed, problem in enumerate(made):
            began = time.process_time()
            found = plan(problem, seed)
            ms.append((time.process_time() - began) * 1e3)
            assert not violations(problem, found.best)
            over.append(found.best.makespan_s / found.bound_s - 1)
            others = [one.makespan_s for other in OTHERS if (one := PLANNERS[other](problem, seed))]
            worse += found.best.makespan_s > min(others) * (1 + SAME)
        row(
            name,
            f"{samples} / {gpus}",
            str(number),
            f"{np.mean(np.array(over) <= SAME):.1%}",
            percent(float(np.mean(over))),
            percent(max(over)),
            str(worse),
            *(f"{value:.1f}" for value in np.quantile(ms, (0.5, 0.9, 0.99))),
        )


def _drawn(table: CostTable, degrees: Sequence[int], samples: int, gpus: int, seed: int) -> Problem:
    """Draw shapes that every module has with a degree that is allowed."""
    known = [
        {key for key, cells in rows.items() if set(degrees).intersection(cells)}
        for rows in table.by_shape.values()
    ]
    shapes = sorted(set.intersection(*known))
    chosen = np.random.default_rng([11, seed]).integers(0, len(shapes), samples)
    step = [TraceBatch(**dict(zip(table.columns, shapes[place], strict=True))) for place in chosen.tolist()]
    return prepared(table.problem(step, gpus, degrees))


def noise(posed: Sequence[Case]) -> None:
    """Plans of 16 GPUs executed with costs that are off, and planned again with what executions teach of costs."""
    print("\nexecuted on paper\n")
    heading(
        "times",
        "ours over its plan",
        "static LPT over its plan",
        "ours of static LPT",
        "ours at most 1 % behind",
        "ours planned again, of ours",
    )
    small = [case.problem for case in posed if case.problem.gpus == 16]
    for name, mean, fault, sigma in (
        ("as planned", 1.0, 0.0, 0.0),
        ("each run 5 % off", 1.0, 0.0, 0.05),
        ("each run 20 % off", 1.0, 0.0, 0.2),
        ("all 1.20 times as long", EXECUTED_OVER_PLAN, 0.0, 0.05),
        ("1.20 times, each module and degree 10 % off", EXECUTED_OVER_PLAN, 0.1, 0.05),
        ("1.20 times, each module and degree 20 % off", EXECUTED_OVER_PLAN, 0.2, 0.05),
    ):
        rows = []
        for number, problem in enumerate(small):
            ours, static = plan(problem).best, PLANNERS["static-lpt"](problem, 0)
            if static is None:
                continue
            for draw in range(DRAWS):
                off = np.random.default_rng([number, draw, 1])
                fault_MK = mean * off.lognormal(-(fault**2) / 2, fault, problem.times_SMK.shape[1:])
                real = replace(problem, seconds_SMK=problem.seconds_SMK * fault_MK)
                again = plan(real).best if fault else ours
                ended = [_executed(one, real, sigma, [number, draw]) for one in (ours, static, again)]
                rows.append(
                    (
                        ended[0] / ours.makespan_s,
                        ended[1] / static.makespan_s,
                        ended[0] / ended[1],
                        ended[0] <= 1.01 * ended[1],
                        ended[2] / ended[0],
                    )
                )
        late, static_late, share, ahead, taught = np.array(rows, float).mean(axis=0)
        row(name, f"{late:.3f}", f"{static_late:.3f}", f"{share:.3f}", f"{ahead:.0%}", f"{taught:.3f}")


def _executed(schedule: Schedule, real: Problem, sigma: float, seed: list[int]) -> float:
    """Return the makespan with the real times and noise of each run."""
    place = {degree: k for k, degree in enumerate(real.degrees_K.tolist())}
    factors_R = Noise(sigma=sigma).factors(schedule, np.random.default_rng(seed))
    real_R = [real.times_SMK[*run.cascade, place[len(run.gpus)]] for run in schedule.runs]
    planned_R = [run.end_s - run.start_s for run in schedule.runs]
    return execute(schedule, factors_R * np.array(real_R) / np.array(planned_R)).makespan_s


if __name__ == "__main__":
    main()
