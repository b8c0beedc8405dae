"""What measured times are worth: corrections of the cost model, slow GPUs found, plans around them, orders by slack.

    python -m tests.bench.cascade_online [--only correction|slow|around|order] [--seeds 8]

Prints the tables of docs/benchmarks/cascade_online.md as Markdown. All of it is executed on paper.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.online.around import around, slowed
from reelweave.train.cascade.online.correction import corrected, correction
from reelweave.train.cascade.online.measurements import MeasurementWindow, measurements
from reelweave.train.cascade.paper.cases import DEGREES, drawn_at_720p
from reelweave.train.cascade.paper.simulate import Noise, execute
from reelweave.train.cascade.placement.mapper import place
from reelweave.train.cascade.placement.topology import PRESETS
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.schedule_graph import ScheduleGraph
from reelweave.train.config.cascade import CorrectionConfig
from tests.train.cascade.slack import least_slack_first

CASES = ((4, 16), (16, 64), (64, 256), (16, 16), (64, 64))
CONFIG = CorrectionConfig()
NOISE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parts: dict[str, Callable[[int], None]] = {
        "correction": correction_table,
        "slow": slow_table,
        "around": around_table,
        "order": order_table,
    }
    parser.add_argument("--only", choices=parts)
    options = parser.parse_args()
    for name, part in parts.items():
        if options.only in (None, name):
            print(f"\n{name}\n")
            part(options.seeds)


def correction_table(seeds: int) -> None:
    """Twelve iterations with costs that are off, with these corrected by what was measured, and with the right ones.

    Costs are off by one number of each module and degree, and by one of each module. The first two are not counted.
    """
    heading("samples, GPUs", "each off by", "modules off by", "uncorrected", "corrected", "right s")
    for samples, gpus in CASES:
        for each, whole in ((0.1, 0.0), (0.3, 0.0), (0.05, 0.2)):
            means = []
            for seed in range(seeds):
                draw = np.random.default_rng([seed, gpus])
                off_MK = draw.lognormal(0, each, (len(Module), len(DEGREES)))
                off_MK *= draw.lognormal(0, whole, (len(Module), 1))
                means.append([mean_s(samples, gpus, seed, off_MK, learns) for learns in (None, True, False)])
            uncorrected_s, corrected_s, right_s = np.mean(means, axis=0)
            over = (f"{one / right_s - 1:+.1%}" for one in (uncorrected_s, corrected_s))
            row(f"{samples}, {gpus}", f"{each:.0%}", f"{whole:.0%}", *over, f"{right_s:.2f}")


def mean_s(samples: int, gpus: int, seed: int, off_MK: Floats, learns: bool | None) -> float:
    """Iteration time; planned with measured corrections, the right costs (False), or the wrong ones (None)."""
    noise, window, found = np.random.default_rng(seed), MeasurementWindow(), []
    for number in range(12):
        problem = drawn_at_720p(samples, gpus, 100 * seed + number)
        real = corrected(problem, off_MK)
        learned_MK = correction(window, CONFIG).factors_of(problem.degrees_K)
        believed = problem if learns is None else corrected(problem, learned_MK) if learns else real
        executed = executed_on(real, plan(believed).best, noise)
        window = window.with_iteration(measurements(problem, executed), CONFIG.iterations)
        found.append(executed.makespan_s)
    return float(np.mean(found[2:]))


def executed_on(real: Problem, schedule: Schedule, draw: np.random.Generator) -> Schedule:
    """A plan of other times, with the real ones and noise."""
    place_of = {degree: k for k, degree in enumerate(real.degrees_K.tolist())}
    real_R = [real.seconds_SMK[(*run.cascade, place_of[len(run.gpus)])] for run in schedule.runs]
    planned_R = [run.end_s - run.start_s for run in schedule.runs]
    factors_R = Noise(sigma=NOISE).factors(schedule, draw) * np.array(real_R) / planned_R
    return execute(schedule, factors_R)


def slow_table(seeds: int) -> None:
    """Which GPUs are called slow after eight iterations, and how slow."""
    heading("samples, GPUs", "noise", "slow", "factor", "found", "factor off by", "wrongly named", "ms")
    for samples, gpus in CASES[:3]:
        steps = [
            [drawn_at_720p(samples, gpus, 100 * seed + number) for number in range(CONFIG.iterations)]
            for seed in range(seeds)
        ]
        planned = [[(problem, plan(problem).best) for problem in step] for step in steps]
        for sigma in (0.05, 0.1):
            for count, factor in ((0, 1.0), (1, 1.2), (1, 1.5), (3, 1.3)):
                found, wrong, off, ms = 0, 0, [], []
                for seed, step in enumerate(planned):
                    draw = np.random.default_rng([seed, gpus, count])
                    slow = dict.fromkeys(draw.choice(gpus, count, replace=False).tolist(), factor)
                    window = MeasurementWindow()
                    for problem, schedule in step:
                        executed = execute(schedule, Noise(sigma=sigma, slow=slow).factors(schedule, draw))
                        window = window.with_iteration(measurements(problem, executed), CONFIG.iterations)
                    began = time.process_time()
                    named = correction(window, CONFIG).slow
                    ms.append((time.process_time() - began) * 1e3)
                    found += len(slow.keys() & named.keys())
                    wrong += len(named.keys() - slow.keys())
                    off += [abs(named[gpu] / factor - 1) for gpu in slow.keys() & named.keys()]
                row(
                    f"{samples}, {gpus}",
                    f"{sigma:.0%}",
                    count,
                    f"{factor:g}",
                    f"{found} of {count * seeds}",
                    f"{np.mean(off):.1%}" if off else "",
                    wrong,
                    f"{np.median(ms):.0f}",
                )


def around_table(seeds: int) -> None:
    """One slow GPU; iteration time over that with all GPUs alike."""
    heading("samples, GPUs", "factor", "nothing", "planned around", "no less than", "ms")
    for samples, gpus in CASES:
        menu = GroupMenu.of(gpus, DEGREES)
        for factor in (1.05, 1.1, 1.2, 1.5, 2.0):
            rows = []
            for seed in range(seeds):
                problem = drawn_at_720p(samples, gpus, 3000 + seed)
                slow = {int(np.random.default_rng(seed).integers(gpus)): factor}
                planned = plan(problem, seed, menu=menu)
                began = time.process_time()
                found = planned.schedule, around(problem, planned, slow, menu, seed)
                ms = (time.process_time() - began) * 1e3
                times = [slowed(one, slow).makespan_s / planned.schedule.makespan_s for one in found]
                rows.append((*times, gpus / (gpus - 1 + 1 / factor), ms))
            *over, ms = np.mean(rows, axis=0)
            row(f"{samples}, {gpus}", f"{factor:g}", *(f"{value - 1:+.1%}" for value in over), f"{ms:.0f}")


def order_table(seeds: int) -> None:
    """Executed with noise in the order of starts and by slack: what the second gains, and its standard error."""
    nears = (0.0, 0.01, 0.03, 0.1)
    heading(
        "samples, GPUs", "noise", "by starts, over the plan", *(f"by slack, {near:.0%}" for near in nears)
    )
    for samples, gpus in CASES:
        for sigma in (0.05, 0.1, 0.2):
            launch, gained = [], {near: list[float]() for near in nears}
            for seed in range(seeds):
                schedule = place(
                    plan(drawn_at_720p(samples, gpus, 2000 + seed), seed).best,
                    PRESETS["dgx-h100"].holding(gpus),
                )
                lines = ScheduleGraph.of(schedule)
                seconds_R = np.array([run.end_s - run.start_s for run in schedule.runs])
                orders = {near: least_slack_first(schedule, near) for near in nears}
                draw = np.random.default_rng(seed)
                for _ in range(100):
                    real_R = seconds_R * Noise(sigma=sigma).factors(schedule, draw)
                    plain_s = lines.ends(real_R).max()
                    launch.append(plain_s / schedule.makespan_s - 1)
                    for near, order_R in orders.items():
                        gained[near].append(1 - lines.ends(real_R, order_R).max() / plain_s)
            cells = [
                f"{np.mean(gained[near]):+.2%} ± {np.std(gained[near]) / np.sqrt(len(launch)):.2%}"
                for near in nears
            ]
            row(f"{samples}, {gpus}", f"{sigma:.0%}", f"{np.mean(launch):+.1%}", *cells)


def heading(*cells: str) -> None:
    row(*cells)
    print("|---" * len(cells) + "|")


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
