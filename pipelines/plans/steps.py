"""Step plans of a dataset or a workload: idle time and spreads of each policy, side by side."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.buckets.cost import Cost, MeasuredCost, PowerCost
from reelweave.loader.buckets.cost_fit import fit_linear_quadratic, read_timings
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import POLICIES, Policy, StepLayout
from reelweave.loader.read.locality import Locality
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.simulation.idle_forecast import BALANCED_FROM, WORTH_A_WORD, heavy_tail
from reelweave.loader.simulation.packed_steps import PACK_POLICIES, SimulatedPacks, simulate_packs
from reelweave.loader.simulation.simulate import (
    COST_ERRORS,
    PLAN_SCHEMA,
    PlannedStep,
    SimulatedPlan,
    simulate,
)
from reelweave.pipelines.plans.mixture import Mixture
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.files import output_target, read_text, say_replaced, unwritable

if TYPE_CHECKING:
    from reelweave.train.cascade.simulation.trace import Trace

_MAX_RANKS, _MAX_MICROBATCHES, _MAX_STEPS, _MAX_LOOKAHEAD = 65536, 1024, 1_000_000, 1024
_MAX_STEPS_OF_CASCADES = 1000
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


def add_arguments(plan: argparse._ArgumentGroup) -> None:
    """Add the options of step plans."""
    plan.add_argument(
        "--policy",
        choices=POLICIES,
        default="balanced",
        help="policy of the plan that is written (default: balanced)",
    )
    plan.add_argument(
        "--regime",
        choices=("step", "slot", "pack"),
        default="step",
        help="synchronization of ranks (default: step). step: once a step. slot: after every microbatch. pack: once a"
        " step, with packs of samples of any shape as microbatches",
    )
    plan.add_argument(
        "--lookahead",
        type=int,
        default=4,
        metavar="K",
        help="the slot regime moves a microbatch by fewer than K steps (default: 4)",
    )
    plan.add_argument(
        "--timings",
        type=Path,
        metavar="CSV",
        help="fit the cost a + b*B*S + c*B*S^2 to measured steps: columns batch, length, step_s (default cost: B*S^2)",
    )


def run(options: argparse.Namespace, mixture: Mixture, ranks: int, steps: int) -> int:
    """Plan, measure and print.

    Args:
        options: parsed options of the command.
        mixture: mixture to plan for.
        ranks: number of data-parallel ranks.
        steps: number of steps.

    Raises:
        UsageError: an option has a wrong value, or the mixture cannot fill a step.
    """
    _check("--world-size", ranks, _MAX_RANKS)
    _check("--microbatches", options.microbatches, _MAX_MICROBATCHES)
    _check("--steps", steps, _MAX_STEPS)
    _check("--lookahead", options.lookahead, _MAX_LOOKAHEAD)
    _check("--seed", options.seed + 1, 2**64)
    cost = mixture.budgets.counted_cost if options.timings is None else _fit_cost(options.timings)

    policies = PACK_POLICIES if options.regime == "pack" else POLICIES
    if options.policy not in policies:
        raise UsageError(
            f"--policy {options.policy} makes no packs; with --regime pack it is {' or '.join(policies)}"
        )

    step_layout = StepLayout(ranks, options.microbatches, options.policy, options.regime, options.lookahead)

    def simulate_layout(
        layout: StepLayout, keep: Callable[[PlannedStep], None] = lambda _: None
    ) -> SimulatedPlan:
        # As many samples whatever a step holds of them.
        count = max(1, steps * step_layout.per_step // layout.per_step)
        if options.regime == "pack":
            return simulate_packs(mixture.packs(layout, cost, count), keep)
        return simulate(mixture.steps(layout, cost, count), keep)

    if options.plan_out:
        with _plan_file(options.plan_out) as keep:
            chosen = simulate_layout(step_layout, keep)
    else:
        chosen = simulate_layout(step_layout)
    results: dict[Policy, SimulatedPlan] = {
        policy: chosen if policy == options.policy else simulate_layout(replace(step_layout, policy=policy))
        for policy in policies
    }
    by_microbatches: dict[int, float] = {}
    if options.regime == "step" and options.policy == "balanced":
        for count in sorted({STREAM_DEFAULT, BALANCED_FROM, options.microbatches}):
            with suppress(UsageError):  # a dataset may be too small for a step of so many
                plan = (
                    chosen
                    if count == step_layout.microbatches
                    else simulate_layout(replace(step_layout, microbatches=count))
                )
                by_microbatches[count] = plan.metrics.idle
    read = None if options.regime == "pack" else mixture.locality
    reading = {} if read is None else read(step_layout, cost)
    if options.json:
        result_json = {
            "workload": mixture.name,
            "world_size": ranks,
            "microbatches": options.microbatches,
            "steps": steps,
            "seed": options.seed,
            "regime": options.regime,
            "lookahead": options.lookahead,
            "cost": cost.model_dump(),
            "buckets": [str(bucket) for bucket in mixture.buckets],
            "policy": options.policy,
        }
        if reading:
            result_json["reading_by_run"] = {str(run): asdict(reads) for run, reads in reading.items()}
        if by_microbatches:
            result_json["idle_by_microbatches"] = {
                str(count): idle for count, idle in by_microbatches.items()
            }
        print_json(
            {
                **result_json,
                **_keys(chosen),
                "policies": {name: _keys(plan) for name, plan in results.items()},
            }
        )
        return 0
    what, wait = ("packs", "step") if options.regime == "pack" else ("microbatches", options.regime)
    title = (
        f"{mixture.name}: {ranks} ranks, {options.microbatches} {what} each, {steps} steps,"
        f" ranks wait once a {wait}"
    )
    _print(title, results, [*_advice(chosen, by_microbatches), f"cost: {_unit(cost)}"], options)
    if reading:
        _print_reading(reading)
    return 0


def trace_of(mixture: Mixture, ranks: int, microbatches: int, steps: int) -> "Trace":
    """Return the first steps of a mixture as a trace, whose microbatches are scheduled as cascades on all GPUs.

    Args:
        mixture: mixture to plan for.
        ranks: number of GPUs.
        microbatches: microbatches per GPU and step.
        steps: number of steps.

    Raises:
        UsageError: a number is out of range, or the mixture cannot fill a step.
    """
    from reelweave.train.cascade.simulation.trace import Trace, TraceBatch

    _check("--world-size", ranks, _MAX_RANKS)
    _check("--microbatches", microbatches, _MAX_MICROBATCHES)
    _check("--steps", steps, _MAX_STEPS_OF_CASCADES)
    # Steps as training would plan them, for the sizes of their microbatches alone.
    planned = mixture.steps(StepLayout(ranks, microbatches, "balanced"), mixture.budgets.counted_cost, steps)
    shapes = []
    for step, _ in planned:
        step_microbatches = step.microbatches
        columns = zip(
            step_microbatches.bucket.tolist(),
            step_microbatches.length.tolist(),
            step_microbatches.batch.tolist(),
            strict=True,
        )
        shapes.append(
            tuple(
                TraceBatch(
                    frames=bucket.frames, height=bucket.height, width=bucket.width, tokens=length, batch=batch
                )
                for bucket_index, length, batch in columns
                for bucket in (mixture.buckets[bucket_index],)
            )
        )
    return Trace(gpus=ranks, steps=tuple(shapes))


def _advice(chosen: SimulatedPlan, by_microbatches: dict[int, float]) -> list[str]:
    """Return what the figures mean for the settings of a stream."""
    advice = []
    if by_microbatches:
        each = ", ".join(
            f"{count}{' (default of a stream)' if count == STREAM_DEFAULT else ''} {idle:.2%}"
            for count, idle in by_microbatches.items()
        )
        advice.append(f"idle by stream.microbatches: {each}")
    floor, better = chosen.metrics.idle_floor, min(by_microbatches.values(), default=1.0)
    if floor > WORTH_A_WORD and chosen.metrics.dearest > 1 and better > floor - WORTH_A_WORD:
        advice.append(heavy_tail(floor, chosen.metrics.dearest))
    return advice


def _keys(simulated: SimulatedPlan) -> dict[str, Any]:
    packs = _PACKS if isinstance(simulated, SimulatedPacks) else {}
    return {
        **asdict(simulated.metrics),
        **{name: getattr(simulated, name) for name in packs},
        "plan_ms_per_step": simulated.plan_ms_per_step,
        "idle_with_error": {f"{error:g}": value for error, value in simulated.idle_with_error.items()},
    }


def _check(option: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise UsageError(f"{option} is {value}; it goes from 1 to {maximum:,}")


def _fit_cost(timings: Path) -> Cost:
    return fit_linear_quadratic(read_timings(read_text(timings, "--timings"), str(timings))).trusted_cost()


@contextmanager
def _plan_file(path: Path) -> Iterator[Callable[[PlannedStep], None]]:
    """Write the steps passed to the yielded function as one parquet file, which appears whole or not at all."""
    target = output_target(path, "--plan-out")
    say_replaced(path)
    try:
        with whole_file(target) as aside, pq.ParquetWriter(aside, PLAN_SCHEMA) as writer:
            yield lambda step: writer.write_table(step.table())
    except OSError as error:
        raise unwritable(f"--plan-out {path}", error) from error


def _print(
    title: str, results: dict[Policy, SimulatedPlan], advice: list[str], options: argparse.Namespace
) -> None:
    out = stdout()
    keys = {policy: _keys(plan) for policy, plan in results.items()}
    packs = _PACKS if options.regime == "pack" else {}
    # A row for each share, a column for each policy.
    rows: list[tuple[str, ...]] = [
        (
            label,
            *(f"{shares[name]:.2%}" if name != "alone" else f"{shares[name]}" for shares in keys.values()),
        )
        for name, label in {**_SHARES, **packs}.items()
    ]
    for error in COST_ERRORS:
        label = f"idle, costs {error:.0%} off"
        rows.append((label, *(f"{plan.idle_with_error[error]:.2%}" for plan in results.values())))
    rows.append(("plan ms per step", *(f"{plan.plan_ms_per_step:.1f}" for plan in results.values())))
    out.print(table(title, ["mean over steps", *results], rows))
    # What the shares mean.
    notes = [
        *advice,
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
            f"{reads.requests_per_step:,.0f}",
            f"{reads.requests_per_sample:.2f}",
            f"{reads.bytes_per_step / 2**20:,.1f}",
            f"{reads.waste:.1%}",
            f"{reads.neighbours:.1%}",
        )
        for run, reads in reading.items()
    ]
    heads = ["shuffle.run", "requests a step", "of a sample", "MiB a step", "gaps", "beside a neighbour"]
    stdout().print(table("reading, all ranks together", heads, rows))


def _unit(cost: Cost) -> str:
    if isinstance(cost, MeasuredCost):
        return f"{_unit(cost.base)}, samples times {len(cost.lengths)} factors by S"
    if isinstance(cost, PowerCost):
        return (
            f"B*S^{cost.exponent:g}"
            if cost.scale_s == 1 and not cost.fixed_s
            else f"a + b*B*S^{cost.exponent:g}, seconds"
        )
    return f"{cost.fixed_s:.3g} + {cost.token_s:.3g} * B*S + {cost.square_s:.3g} * B*S^2, seconds"
