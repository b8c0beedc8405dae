"""Write a trained model for others: a folder of diffusers, a LoRA file, or plain safetensors.

Takes the averaged weights where the checkpoint has them.
"""

import argparse
from pathlib import Path

from pipelines.console import print_json, stdout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="C",
        help="folder of a run, or of one of its checkpoints",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--merge", action="store_true", help="of a run with LoRA, the whole model with its adapters inside"
    )
    parser.add_argument("--no-ema", action="store_true", help="take the last weights, not their average")


def run(options: argparse.Namespace) -> int:
    """Exports one checkpoint."""
    from train.export import export
    from train.parallel.world import join
    from train.sampling.trained import load_trained

    with join("cpu") as world:
        trained = load_trained(options.checkpoint, world.device, averaged=not options.no_ema)
        export(trained, options.out, options.merge)
    if options.json:
        made = {"out": str(options.out), "checkpoint": str(trained.folder), "step": trained.step}
        print_json(made | {"ema": trained.averaged, "merged": options.merge})
    else:
        kind = "averaged weights" if trained.averaged else "weights"
        stdout().print(f"{options.out}: {kind} of {trained.folder}", markup=False, soft_wrap=True)
    return 0
