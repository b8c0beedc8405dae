"""Fit costs and memory budgets to measured microbatches, or costs to measured cascades.

The CSV of microbatches, from `reelweave bench shapes`, has the columns batch, length, step_s and, for memory, peak_gib.
--cascades fits a profile of `reelweave bench cascades` for `reelweave plan --costs`.
"""

import argparse
from pathlib import Path
from typing import Any

import yaml

from reelweave.loader.buckets.cost_fit import CostFit, fit_linear_quadratic, fit_power, read_timings
from reelweave.loader.buckets.memory_fit import fit_memory
from reelweave.loader.errors import UsageError
from reelweave.pipelines.plans import fit_cascades
from reelweave.pipelines.report.numbers.cost_fit import fit_values
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.files import read_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave fit`."""
    parser.add_argument("csv", nargs="?", type=Path, metavar="CSV", help="measured microbatches")
    parser.add_argument("--target-step-s", type=float, metavar="S", help="longest microbatch, seconds")
    parser.add_argument("--memory-gib", type=float, metavar="GIB", help="usable memory of a GPU")
    fit_cascades.add_arguments(parser.add_argument_group("costs of cascades"))


def run(options: argparse.Namespace) -> int:
    """Fit, print the errors and doubts of each fit, and the keys for stream.buckets."""
    if (options.csv is None) == (options.cascades is None):
        raise UsageError("fit takes a CSV of microbatches, or --cascades CSV")
    if options.cascades:
        return fit_cascades.run(options)
    for name in ("target_step_s", "memory_gib"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 1e9:
            raise UsageError(f"--{name.replace('_', '-')} is {value}; it must be above 0")
    # Both kinds of costs; keys for a stream come from a fit without doubts alone.
    text = read_text(options.csv)
    timings = read_timings(text, str(options.csv))
    fits = {"linear_quadratic": fit_linear_quadratic(timings), "power": fit_power(timings)}
    keys: dict[str, Any] = {}
    if not fits["linear_quadratic"].doubts:
        keys["cost"] = fits["linear_quadratic"].cost.model_dump()
        if options.target_step_s is not None:
            keys["target_step_s"] = options.target_step_s
    if options.memory_gib is not None:
        keys["memory_tokens"] = fit_memory(text, str(options.csv)).tokens(options.memory_gib)
    if options.json:
        print_json({"fits": {name: fit_values(fit) for name, fit in fits.items()}, "buckets": keys})
        return 0
    out = stdout()
    rows = [(name, *_fit_lines(fit)) for name, fit in fits.items()]
    columns = ["cost", "R^2", "held-out error", "worst", "at B, S", "95 % interval", "time lost", "doubts"]
    out.print(table(f"{len(timings.step_s)} microbatches", columns, rows))
    if keys:
        out.print("stream.buckets:", markup=False)
        lines = yaml.safe_dump(keys, sort_keys=False, indent=2).splitlines()
        out.print(*lines, sep="\n", markup=False, soft_wrap=True)
    else:
        out.print("no fit can be trusted; see its doubts", markup=False)
    return 0


def _fit_lines(fit: CostFit) -> tuple[str, ...]:
    return (
        f"{fit.r2:.4f}",
        f"{fit.mean_error:.1%}",
        f"{fit.worst_error:.1%}",
        ", ".join(map(str, fit.worst_cell)),
        f"+- {fit.interval:.1%}",
        f"{fit.lost:.1%}",
        "; ".join(fit.doubts) or "none",
    )
