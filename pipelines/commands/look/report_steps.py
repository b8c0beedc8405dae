"""Steps of a cluster in `reelweave report`: their options, the report of a workload, and tables of policies."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import BudgetsT, Regime
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.commands.look.report_run import check_own
from reelweave.pipelines.report.numbers.cost_fit import fit_words
from reelweave.pipelines.report.numbers.steps.recommendation import of_microbatches
from reelweave.pipelines.report.sections.steps import policy_rows
from reelweave.pipelines.report.steps_config import StepsConfig
from reelweave.pipelines.terminal.arguments import did_you_mean
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.files import read_text
from reelweave.pipelines.terminal.program import hint

if TYPE_CHECKING:
    from reelweave.pipelines.report.numbers.cost_fit import CostFitFigures
    from reelweave.pipelines.report.numbers.steps.plan import PlanFigures
    from reelweave.pipelines.report.numbers.workload import WorkloadConfig, WorkloadFigures

_PLAN = tuple(StepsConfig.model_fields)
_MOVED = ("--policy", "--timings", "--plan-out")
_REGIMES: tuple[Regime, ...] = ("step", "slot", "pack")


def add_arguments(parser: Any) -> None:
    """Add the options of a cluster's steps."""
    parser.add_argument(
        "--workload", metavar="NAME", help=f"report a mixture of shapes by name: {', '.join(WORKLOADS)}"
    )
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="plan the steps of so many ranks: policies side by side, and what is recommended",
    )
    parser.add_argument(
        "--microbatches", type=int, metavar="M", help="microbatches per rank and step (default: 4)"
    )
    parser.add_argument(
        "--regime", choices=_REGIMES, help="synchronization of ranks, as in stream.regime (default: step)"
    )
    parser.add_argument(
        "--lookahead",
        type=int,
        metavar="K",
        help="the slot regime moves a microbatch by fewer than K steps (default: 4)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="K", help="steps to plan (default: 100, fewer above 256 ranks)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed (default: 0)")
    parser.add_argument(
        "--shapes",
        type=Path,
        metavar="CSV",
        help="measured microbatches, from `reelweave bench shapes`: the report shows the fits of their times",
    )
    parser.add_argument(
        "--target-step-s",
        type=float,
        metavar="S",
        help="with --shapes: longest microbatch, seconds; B then follows from the fitted cost",
    )
    for name in _MOVED:
        # Only `reelweave plan` has these; kept to say so.
        parser.add_argument(
            name, dest="moved", action="append", type=_with(name), default=[], help=argparse.SUPPRESS
        )


def check(options: argparse.Namespace) -> None:
    """Refuse options of `reelweave plan`, and those of a cluster without its size.

    Raises:
        UsageError: says what to type.
    """
    if options.moved:
        words = [word for moved in options.moved for word in moved.split(" ", 1) if word]
        what = options.workload or options.dataset
        words = [what, *words] if what else words
        raise UsageError(f"steps are planned by another command: {hint('plan', *words)}")
    if options.workload is not None and options.dataset is not None:
        raise UsageError("give a DATASET or --workload, not both")
    if options.target_step_s is not None and options.shapes is None:
        raise UsageError("--target-step-s needs --shapes, the measured times that a cost is fitted to")
    if options.shapes is not None and options.serve:
        raise UsageError("--shapes is kept with a report that is written; write it first, then --serve it")


def refuse(options: argparse.Namespace) -> None:
    """Refuse the options of a cluster where no steps are planned, for the page of a training run."""
    for name in (*_PLAN, "shapes"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} plans the steps of a dataset or a workload; a run has taken its own"
            )


def overrides(options: argparse.Namespace) -> list[str]:
    """Return the options of a cluster as ``--set`` has them, behind those given by it."""
    values = {name: getattr(options, name) for name in _PLAN}
    return [*options.set, *(f"plan.{name}={value}" for name, value in values.items() if value is not None)]


def report_workload(options: argparse.Namespace) -> None:
    """Print the report of a workload, and write its page with ``--out``.

    Raises:
        UsageError: an option is wrong.
    """
    from reelweave.pipelines.configuration.config import read_given
    from reelweave.pipelines.report.numbers.workload import WorkloadConfig, workload_numbers
    from reelweave.pipelines.report.shapes import check_timings

    # Refuse what a workload has not: files, and options about them.
    name = options.workload
    if name not in WORKLOADS:
        suggestion = did_you_mean(name, WORKLOADS) or f"; known: {', '.join(WORKLOADS)}"
        raise UsageError(f"no workload is called {name}{suggestion}")
    for option in ("samples", "serve", "others"):
        if getattr(options, option):
            raise UsageError(f"--{option.replace('_', '-')} is not for a workload, which has no files")
    config_values = read_given(options.config, overrides(options))
    if "plan" not in config_values.values:
        raise UsageError("a workload is reported for a cluster: add --world-size N")
    # The workload's own limits, below those that are given. A given cost sets their compute budget aside.
    workload_budgets = WORKLOADS[name].budgets.model_dump(mode="json")
    limits = config_values.values.get("buckets")
    if isinstance(limits, dict):
        if limits.get("cost") is not None:
            workload_budgets["compute_budget"] = None
        limits = {**workload_budgets, **limits}
    values = {**config_values.values, "buckets": workload_budgets if limits is None else limits}
    config = config_values._replace(values=values).validate(WorkloadConfig)
    if options.out:
        check_own(options.out)
    # Measured shapes, if given, make the cost; then the numbers of the page, or of the console.
    budgets, text = measured_budgets(config.buckets, options)
    config = config.model_copy(update={"buckets": budgets})
    timings = None if text is None else check_timings(text, str(options.shapes))
    figures = workload_numbers(name, config, timings)
    written = {"report": _write_page(figures, config, options.out)} if options.out else {}
    if options.json:
        print_json({**figures.to_json(), **written})
        return
    print_plan(name, figures.plan)
    print_fit(figures.cost_fit)
    for where in written.values():
        stdout().print(f"report: {where}", markup=False, soft_wrap=True)


def _write_page(figures: "WorkloadFigures", config: "WorkloadConfig", folder: Path) -> str:
    from reelweave.pipelines.report.sections.workload import workload_page
    from reelweave.pipelines.report.web.files import publish

    return publish(
        open_storage(str(folder.absolute()), StorageConfig()), "", workload_page(figures, config), {}
    )


def measured_budgets(budgets: BudgetsT, options: argparse.Namespace) -> tuple[BudgetsT, str | None]:
    """Return the budgets that follow from ``--shapes``, and the file's text; as they are and None without it.

    Raises:
        UsageError: an option or the file is wrong.
    """
    from reelweave.pipelines.report.shapes import with_shapes

    if options.shapes is None:
        if options.memory_gib is not None:
            raise UsageError(
                "--memory-gib needs --shapes, whose peaks say how many tokens fit, or a training run"
            )
        return budgets, None
    text = read_text(options.shapes, "--shapes")
    name = str(options.shapes)
    return with_shapes(budgets, text, name, options.target_step_s, options.memory_gib), text


def print_fit(fit: "CostFitFigures | None") -> None:
    """Print whether the fit of measured shapes can be trusted."""
    if fit is not None:
        for words in fit_words(fit):
            stdout().print(words, markup=False, soft_wrap=True)


def print_plan(name: str, plan: "PlanFigures") -> None:
    """Print the policies beside each other, and the recommendation."""
    out = stdout()
    steps, planned = plan.steps, plan.planned
    if isinstance(planned, str):
        out.print(f"no steps are planned: {planned}", markup=False, soft_wrap=True)
        return
    each = of_microbatches(steps.microbatches)
    title = (
        f"{name}: {steps.world_size} ranks, {each} each, {steps.count} steps,"
        f" ranks wait once a {'slot' if steps.regime == 'slot' else 'step'}"
    )
    out.print(table(title, ["mean over steps", *planned.by_name], policy_rows(planned, plan.cost)))
    for words in planned.recommendation.words:
        out.print(words, markup=False, soft_wrap=True)
    lines = planned.recommendation.stream_yaml.splitlines()
    out.print("for a training configuration:", *lines, sep="\n", markup=False, soft_wrap=True)


def _with(name: str) -> Any:
    return lambda value: f"{name} {value}"
