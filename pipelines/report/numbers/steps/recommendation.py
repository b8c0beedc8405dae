"""A recommendation of microbatches and of the compute limit, whose promise is planned with the same steps."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost import seconds
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import BudgetsT
from reelweave.pipelines.plans.mixture import Mixture
from reelweave.pipelines.report.numbers.steps.policies import PolicyNumbers, policy_numbers
from reelweave.pipelines.report.steps_config import StepsConfig

PROMISED = ("throughput", "idle", "compute_cv", "compute_cv_s2", "token_cv", "padding", "memory")
"""Figures of a policy that a recommendation promises."""

_MICROBATCHES = (1, 2, 4, 8)
_AS_GOOD = 0.01  # relative difference of throughput below which the simpler setting is recommended
_EXCEEDED = 1.2  # a sample's cost over the limit, from which another limit is tried
_UNLIMITED_TRIES = (0.0, 0.5)  # from the dearest sample to the dearest microbatch of a full memory


@dataclass(frozen=True)
class Tried:
    """One setting that was planned under `balanced`.

    Attributes:
        microbatches: microbatches per rank and step.
        limit: maximum cost of a microbatch; None for no limit.
        idle: share of the time that ranks wait.
        throughput: see `reelweave.pipelines.report.numbers.steps.policies.PolicyNumbers`.
        samples: samples per step.
    """

    microbatches: int
    limit: float | None
    idle: float
    throughput: float
    samples: float


@dataclass(frozen=True)
class Recommendation:
    """Setting of highest throughput; among those within 1 % the one nearest to what is set.

    Attributes:
        words: one sentence each.
        changes: whether anything is to be changed.
        microbatches: microbatches per rank and step.
        limit: maximum cost of a microbatch; None for no limit.
        promised: figures of `balanced` that a report with ``report_yaml`` has.
        report_yaml: keys for `reelweave report --config`.
        stream_yaml: keys for a training configuration.
        tried: settings that were planned.
    """

    words: list[str]
    changes: bool
    microbatches: int
    limit: float | None
    promised: dict[str, float]
    report_yaml: str
    stream_yaml: str
    tried: list[Tried]


def recommend(
    make: Callable[[BudgetsT], Mixture],
    budgets: BudgetsT,
    steps: StepsConfig,
    lengths: Sequence[int],
    planned: PolicyNumbers,
) -> Recommendation:
    """Plan settings, and recommend one.

    Tried are `balanced` with 1, 2, 4, 8 and the given microbatches per rank and step, under the given compute
    limit. If there is none, or one sample exceeds it by a fifth, further limits are tried. These are the cost
    of the dearest sample and no limit. Without a limit also some up to the dearest microbatch that memory
    allows.

    Args:
        make: function from budgets to the mixture.
        budgets: the given limits.
        steps: cluster and steps.
        lengths: S of the buckets that hold samples.
        planned: figures of `balanced` as given.
    """
    tried: list[tuple[Tried, StepsConfig, BudgetsT, PolicyNumbers]] = []
    for limit in _limits(budgets, lengths):
        limited = _with_limit(budgets, limit)
        mixture = make(limited)
        for count in sorted({*_MICROBATCHES, steps.microbatches}):
            tried_steps = steps.model_copy(update={"microbatches": count})
            is_given = limited == budgets and tried_steps == steps
            try:
                outcome = planned if is_given else policy_numbers(mixture, tried_steps, "balanced")
            except UsageError:  # a dataset may be too small for a step of so many
                continue
            trial = Tried(count, limit, outcome.metrics.idle, outcome.throughput, outcome.samples)
            tried.append((trial, tried_steps, limited, outcome))
    best = max(trial.throughput for trial, *_ in tried)
    good = [trial for trial in tried if trial[0].throughput >= best * (1 - _AS_GOOD)]
    chosen, tried_steps, limited, outcome = min(
        good,
        key=lambda trial: (trial[0].limit != budgets.cost_limit, trial[0].microbatches, -trial[0].throughput),
    )
    figures = outcome.to_json()
    return Recommendation(
        words=_words(chosen, planned, budgets, steps),
        changes=(chosen.microbatches, chosen.limit) != (steps.microbatches, budgets.cost_limit),
        microbatches=chosen.microbatches,
        limit=chosen.limit,
        promised={name: figures[name] for name in PROMISED},
        report_yaml=_yaml({"buckets": _keys(limited), "plan": tried_steps.model_dump(mode="json")}),
        stream_yaml=_yaml({"stream": _stream(tried_steps) | {"buckets": _keys(limited)}}),
        tried=[trial for trial, *_ in tried],
    )


def _limits(budgets: Budgets, lengths: Sequence[int]) -> list[float | None]:
    """Return the limits to try, the given one first."""
    cost, given_limit = budgets.counted_cost, budgets.cost_limit
    dearest = float(max(seconds(cost, 1, length) for length in lengths))
    if given_limit is not None:
        return [given_limit, _rounded_up(dearest)] if dearest > _EXCEEDED * given_limit else [given_limit]
    max_cost = float(
        max(seconds(cost, max(1, budgets.memory_tokens // length), length) for length in lengths)
    )
    between = {_rounded_up(dearest * (max_cost / dearest) ** share) for share in _UNLIMITED_TRIES}
    return [None, *sorted(between)]


def _rounded_up(value: float) -> float:
    """Return the value rounded up to three digits, as people write it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.3g}")


def _with_limit(budgets: BudgetsT, limit: float | None) -> BudgetsT:
    if limit == budgets.cost_limit:
        return budgets
    name = "compute_budget" if budgets.cost is None else "target_step_s"
    return budgets.model_copy(update={name: limit})


def _words(chosen: Tried, planned: PolicyNumbers, budgets: Budgets, steps: StepsConfig) -> list[str]:
    gain = chosen.throughput / planned.throughput - 1
    is_current = (chosen.microbatches, chosen.limit) == (steps.microbatches, budgets.cost_limit)
    if is_current:
        return [
            f"Keep what is set: with {of_microbatches(steps.microbatches)} per rank and step, ranks wait"
            f" {chosen.idle:.2%} of the time under balanced, and nothing else that was tried is more than"
            f" {_AS_GOOD:.0%} faster."
        ]
    # More microbatches per step, and what that gains.
    words = [
        f"Give every rank {of_microbatches(chosen.microbatches)} per step (stream.microbatches) and let"
        f" balanced place them: ranks then wait {chosen.idle:.2%} of the time,"
        f" with {of_microbatches(steps.microbatches)} {planned.metrics.idle:.2%};"
        f" throughput {'rises' if gain >= 0 else 'falls'} by {abs(gain):.1%}."
    ]
    # A limit that keeps the longest samples from making others wait.
    if chosen.limit is not None and chosen.limit != budgets.cost_limit:
        name = "compute_budget" if budgets.cost is None else "target_step_s"
        words.append(
            f"Set {name} to {chosen.limit:.4g}: without it B of long samples grows until memory is full, and they make"
            " others wait."
            if budgets.cost_limit is None
            else f"Raise {name} from {budgets.cost_limit:.4g} to {chosen.limit:.4g}, which the longest sample costs by"
            " itself."
        )
    if gain < _AS_GOOD and chosen.microbatches < steps.microbatches:
        words.append("It is as fast, and a step has fewer samples.")
    return words


def of_microbatches(count: int) -> str:
    """Return a number of microbatches in words."""
    return "1 microbatch" if count == 1 else f"{count} microbatches"


def _keys(budgets: Budgets) -> dict[str, Any]:
    return budgets.model_dump(mode="json")


def _stream(steps: StepsConfig) -> dict[str, Any]:
    stream_keys = {name: getattr(steps, name) for name in ("microbatches", "regime", "lookahead", "seed")}
    return {"policy": "balanced", **stream_keys}


def _yaml(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False, width=100, default_flow_style=None)
