"""Fit of cascade costs to a profile, for `reelweave plan --costs`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelweave.loader.errors import UsageError
from reelweave.pipelines.terminal.arguments import add_config
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.files import read_text, write_output
from reelweave.pipelines.terminal.program import hint

if TYPE_CHECKING:
    from reelweave.train.cascade.costs.fit import FittedCosts


def add_arguments(parser: Any) -> None:
    """Add the options of `reelweave fit --cascades`.

    Args:
        parser: parser, or a group of one.
    """
    parser.add_argument(
        "--cascades", type=Path, metavar="CSV", help="profile from `reelweave bench cascades`"
    )
    add_config(parser, "YAML configuration of the measured run", overrides="one key of --config")
    parser.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="number of GPUs that share the optimizer's state (default: 1)",
    )
    parser.add_argument(
        "--gpus-per-node", type=int, default=8, metavar="N", help="GPUs per node (default: 8)"
    )
    parser.add_argument("--out", type=Path, metavar="JSON", help="file of the costs (default: costs.json)")


def run(options: argparse.Namespace) -> int:
    """Fit, write the costs, and print their errors on held-out shapes."""
    if options.config is None:
        raise UsageError("fit --cascades needs --config FILE, the configuration of the run that was measured")
    if min(options.gpus, options.gpus_per_node) < 1:
        raise UsageError("--gpus and --gpus-per-node must be at least 1")
    fitted = _fit_costs(options)
    out = options.out or Path("costs.json")
    write_output(out, (fitted.costs.model_dump_json(indent=1) + "\n").encode(), "--out")
    if options.json:
        held_out = {name: error.model_dump() for name, error in fitted.costs.held_out.items()}
        print_json({"out": str(out), "held_out": held_out, "notes": fitted.notes})
        return 0
    rows = [
        (name, f"{error.mean:.1%}", f"{error.max:.1%}", error.rows)
        for name, error in fitted.costs.held_out.items()
    ]
    columns = ["module", "held-out error", "worst", "held-out rows"]
    stdout().print(table(f"costs of cascades, in {out}", columns, rows))
    for note in fitted.notes:
        stdout().print(note, markup=False, soft_wrap=True)
    words = ("--cascades", "--costs", out, "--world-size", options.gpus, "--microbatches", 1)
    stdout().print(f"next: {hint('plan', 'koala-wide', *words)}", soft_wrap=True)
    return 0


def _fit_costs(options: argparse.Namespace) -> "FittedCosts":
    import numpy as np

    from reelweave.loader.buckets.assignment import Bucket
    from reelweave.pipelines.configuration.model_rate import resolve_run
    from reelweave.train.cascade.costs.cost_model import Links
    from reelweave.train.cascade.costs.fit import FittedCosts, fit_costs
    from reelweave.train.cascade.costs.profile_csv import read_profile
    from reelweave.train.cascade.costs.run_sizes import sizes_of, with_gathered_layers, with_predicted_peaks
    from reelweave.train.memory.shapes import StepShape

    # Peaks that were measured, or else those of a dry run.
    profile = read_profile(read_text(options.cascades, "--cascades"), str(options.cascades))
    config = resolve_run(options.config, options.set)
    step, notes = config.train.step, []
    if not np.isfinite(profile.peak_gib).any():
        notes.append("no peaks were measured: memory is that of a dry run (reelweave.train.memory.dry_run)")
        profile = with_predicted_peaks(profile, step, options.gpus)
    else:
        profile = with_gathered_layers(profile, step, options.gpus)
    # Sizes of weights and activations follow from the model and one shape of the profile.
    first = StepShape(Bucket(*profile.size_n3[0].tolist()), int(profile.batch[0]), int(profile.length[0]))
    buckets = config.stream.buckets
    fit = fit_costs(
        profile,
        str(options.cascades),
        sizes_of(step, first, options.gpus),
        Links(gpus_per_node=options.gpus_per_node, balanced=True),
        buckets.compression,
        buckets.max_text_tokens,
    )
    return FittedCosts(fit.costs, (*notes, *fit.notes))
