"""How evenly a cluster would work on a dataset or a named mixture, policy beside policy."""

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from loader.buckets.cost import Cost, PowerCost
from loader.buckets.cost_fit import fit_linear_quadratic, read_timings
from loader.errors import UsageError
from loader.paper.idle_forecast import BALANCED_FROM, WORTH_A_WORD, heavy_tail
from loader.paper.packed_steps import PACK_POLICIES, SimulatedPacks, simulate_packs
from loader.paper.simulate import COST_ERRORS, PLAN_SCHEMA, PlannedStep, SimulatedPlan, simulate
from loader.paper.workloads import WORKLOADS
from loader.plan.policy import POLICIES, Policy, StepLayout
from loader.read.locality import Locality
from loader.read.stream_config import StreamConfig
from pipelines.report.mixture import Mixture
from pipelines.terminal.console import print_json, stdout, table
from pipelines.terminal.files import read_text

_MAX_RANKS, _MAX_MICROBATCHES, _MAX_STEPS, _MAX_LOOKAHEAD = 65536, 1024, 1_000_000, 1024
STREAM_DEFAULT: int = StreamConfig.model_fields["microbatches"].default

_SHARES = {
    "idle": "idle",
    "idle_floor": "idle, any plan",
    "compute_cv": "compute CV",
    "compute_cv_s2": "CV of B*S^2",
    "token_cv": "token CV",
    "padding": "padding",
    "image_share_std": "image share, spread",
    "samples_std": "samples, spread",
}

_PACKS = {
    "idle_slot": "idle, waiting after every pack",
    "fill": "tokens used of the budget",
    "carried": "samples carried over a step",
    "alone": "samples longer than a pack",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of planning."""
    plan = parser.add_argument_group("planning", "with --workload, or with --world-size for a dataset")
    plan.add_argument("--workload", choices=sorted(WORKLOADS), help="a named mixture instead of a dataset")
    plan.add_argument("--world-size", type=int, metavar="N", help="data-parallel ranks (--workload: 16)")
    plan.add_argument("--policy", choices=POLICIES, default="balanced", help="default: balanced")
    plan.add_argument(
        "--microbatches", type=int, default=4, metavar="M", help="of a rank in a step (default: 4)"
    )
    plan.add_argument("--steps", type=int, default=100, metavar="K", help="planned (default: 100)")
    plan.add_argument(
        "--regime",
        choices=("step", "slot", "pack"),
        default="step",
        help="step: ranks wait for each other once a step; slot: after every microbatch; pack: once a step, and"
        " microbatches are packs of samples of any shape (default: step)",
    )
    plan.add_argument(
        "--lookahead",
        type=int,
        default=4,
        metavar="K",
        help="the slot regime moves a microbatch by fewer than this many steps (default: 4)",
    )
    plan.add_argument("--seed", type=int, default=0, help="of the stream (default: 0)")
    plan.add_argument(
        "--timings",
        type=Path,
        metavar="CSV",
        help="shape benchmark with the columns batch, length, step_s; fits a + b*B*S + c*B*S^2 (default cost: B*S^2)",
    )
    plan.add_argument(
        "--plan-out", type=Path, metavar="FILE", help="write the plan as parquet, one row per microbatch"
    )


def run(options: argparse.Namespace, mixture: Mixture) -> int:
    """Plans, measures and prints."""
    ranks = 16 if options.world_size is None else options.world_size
    _check("--world-size", ranks, _MAX_RANKS)
    _check("--microbatches", options.microbatches, _MAX_MICROBATCHES)
    _check("--steps", options.steps, _MAX_STEPS)
    _check("--lookahead", options.lookahead, _MAX_LOOKAHEAD)
    _check("--seed", options.seed + 1, 2**64)
    cost = mixture.budgets.counted_cost if options.timings is None else _fitted(options.timings)

    policies = PACK_POLICIES if options.regime == "pack" else POLICIES
    if options.policy not in policies:
        raise UsageError(
            f"--policy {options.policy} makes no packs; with --regime pack it is {' or '.join(policies)}"
        )

    asked = StepLayout(ranks, options.microbatches, options.policy, options.regime, options.lookahead)

    def simulated(layout: StepLayout, keep: Callable[[PlannedStep], None] = lambda _: None) -> SimulatedPlan:
        # As many samples whatever a step holds of them.
        steps = max(1, options.steps * asked.per_step // layout.per_step)
        if options.regime == "pack":
            return simulate_packs(mixture.packs(layout, cost, steps), keep)
        return simulate(mixture.steps(layout, cost, steps), keep)

    if options.plan_out:
        with _plan_file(options.plan_out) as keep:
            chosen = simulated(asked, keep)
    else:
        chosen = simulated(asked)
    results: dict[Policy, SimulatedPlan] = {
        policy: chosen if policy == options.policy else simulated(replace(asked, policy=policy))
        for policy in policies
    }
    by_microbatches: dict[int, float] = {}
    if options.regime == "step" and options.policy == "balanced":
        for count in sorted({STREAM_DEFAULT, BALANCED_FROM, options.microbatches}):
            with suppress(UsageError):  # a dataset may be too small for a step of so many
                found = (
                    chosen if count == asked.microbatches else simulated(replace(asked, microbatches=count))
                )
                by_microbatches[count] = found.metrics.idle
    read = None if options.regime == "pack" else mixture.locality
    reading = {} if read is None else read(asked, cost)
    if options.json:
        said = {
            "workload": mixture.name,
            "world_size": ranks,
            "microbatches": options.microbatches,
            "steps": options.steps,
            "seed": options.seed,
            "regime": options.regime,
            "lookahead": options.lookahead,
            "cost": cost.model_dump(),
            "buckets": [str(bucket) for bucket in mixture.buckets],
            "policy": options.policy,
        }
        if reading:
            said["reading_by_run"] = {str(run): asdict(one) for run, one in reading.items()}
        if by_microbatches:
            said["idle_by_microbatches"] = {str(count): idle for count, idle in by_microbatches.items()}
        print_json({**said, **_keys(chosen), "policies": {name: _keys(one) for name, one in results.items()}})
        return 0
    _print(results, _advice(chosen, by_microbatches), mixture, options, ranks, cost)
    if reading:
        _print_reading(reading)
    return 0


def _advice(chosen: SimulatedPlan, by_microbatches: dict[int, float]) -> list[str]:
    """What the figures mean for the settings of a stream."""
    said = []
    if by_microbatches:
        each = ", ".join(
            f"{count}{' (default of a stream)' if count == STREAM_DEFAULT else ''} {idle:.2%}"
            for count, idle in by_microbatches.items()
        )
        said.append(f"idle by stream.microbatches: {each}")
    floor, better = chosen.metrics.idle_floor, min(by_microbatches.values(), default=1.0)
    if floor > WORTH_A_WORD and chosen.metrics.dearest > 1 and better > floor - WORTH_A_WORD:
        said.append(heavy_tail(floor, chosen.metrics.dearest))
    return said


def _keys(simulated: SimulatedPlan) -> dict[str, Any]:
    packs = _PACKS if isinstance(simulated, SimulatedPacks) else {}
    return {
        **asdict(simulated.metrics),
        **{name: getattr(simulated, name) for name in packs},
        "plan_ms_per_step": simulated.plan_ms_per_step,
        "idle_with_error": {f"{error:g}": value for error, value in simulated.idle_with_error.items()},
    }


def _check(option: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{option} is {value}; it goes from 1 to {most:,}")


def _fitted(timings: Path) -> Cost:
    return fit_linear_quadratic(read_timings(read_text(timings, "--timings"), str(timings))).trusted()


@contextmanager
def _plan_file(path: Path) -> Iterator[Callable[[PlannedStep], None]]:
    """Takes steps and writes them as one parquet file, which appears whole or not at all."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        file = unfinished.open("wb")
    except OSError as error:
        raise UsageError(f"--plan-out {path} cannot be written: {error.strerror}") from error
    try:
        with file, pq.ParquetWriter(file, PLAN_SCHEMA) as writer:
            yield lambda step: writer.write_table(step.table())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _print(
    results: dict[Policy, SimulatedPlan],
    said: list[str],
    mixture: Mixture,
    options: argparse.Namespace,
    ranks: int,
    cost: Cost,
) -> None:
    out = stdout()
    keys = {policy: _keys(one) for policy, one in results.items()}
    packs = _PACKS if options.regime == "pack" else {}
    rows: list[tuple[str, ...]] = [
        (label, *(f"{one[name]:.2%}" if name != "alone" else f"{one[name]}" for one in keys.values()))
        for name, label in {**_SHARES, **packs}.items()
    ]
    for error in COST_ERRORS:
        label = f"idle, costs {error:.0%} off"
        rows.append((label, *(f"{one.idle_with_error[error]:.2%}" for one in results.values())))
    rows.append(("plan ms per step", *(f"{one.plan_ms_per_step:.1f}" for one in results.values())))
    what, wait = ("packs", "step") if options.regime == "pack" else ("microbatches", options.regime)
    title = (
        f"{mixture.name}: {ranks} ranks, {options.microbatches} {what} each, {options.steps} steps,"
        f" ranks wait once a {wait}"
    )
    out.print(table(title, ["mean over steps", *results], rows))
    notes = [
        *said,
        f"cost: {_unit(cost)}",
        "CV: (max - min) / max over the ranks; idle: 1 - mean / max, the share of time spent waiting",
        "idle, any plan: no placement of a step's microbatches idles less",
        "costs off: each microbatch really costs so much more or less than planned (standard deviation)",
    ]
    if options.plan_out:
        notes.append(f"plan of {options.policy}: {options.plan_out}")
    for note in notes:
        out.print(note, markup=False, soft_wrap=True)


def _print_reading(reading: dict[int, Locality]) -> None:
    rows = [
        (
            f"{run}",
            f"{one.requests_per_step:,.0f}",
            f"{one.requests_per_sample:.2f}",
            f"{one.bytes_per_step / 2**20:,.1f}",
            f"{one.waste:.1%}",
            f"{one.neighbours:.1%}",
        )
        for run, one in reading.items()
    ]
    heads = ["shuffle.run", "requests a step", "of a sample", "MiB a step", "gaps", "beside a neighbour"]
    stdout().print(table("reading, all ranks together", heads, rows))


def _unit(cost: Cost) -> str:
    if isinstance(cost, PowerCost):
        return (
            f"B*S^{cost.exponent:g}"
            if cost.scale_s == 1 and not cost.fixed_s
            else f"a + b*B*S^{cost.exponent:g}, seconds"
        )
    return f"{cost.fixed_s:.3g} + {cost.token_s:.3g} * B*S + {cost.square_s:.3g} * B*S^2, seconds"
