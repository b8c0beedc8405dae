"""Compute VAE latents and text contexts once, into a new version of a dataset.

CONFIG is that of `reelweave train`, which then trains from the new version without loading a VAE. The same command
finishes a run that was interrupted; DATASET is only read.
"""

import argparse
import json
from pathlib import Path

from loader.dataset.latents import Latents
from pipelines.commands.curate import curation_progress, print_accounting, summary
from pipelines.configuration.config import resolve
from pipelines.terminal.console import print_json, stdout, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix of a finished dataset")
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="YAML configuration of `reelweave train`"
    )
    parser.add_argument(
        "--out", required=True, metavar="URI", help="folder or s3:// prefix of the new version"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")


def run(options: argparse.Namespace) -> int:
    """Encodes, and prints what was chosen and what became of every sample."""
    from pipelines.configuration.train_config import TrainRunConfig
    from pipelines.latents.run import make_latents

    given = [f"dataset={json.dumps(options.dataset)}", f"out={json.dumps(options.out)}"]
    config = resolve(TrainRunConfig, options.config, [*given, *options.set])
    with curation_progress() as progress:
        outcome = make_latents(options.dataset, options.out, config, progress)
    dataset, latents = outcome.dataset, outcome.dataset.latents
    assert latents is not None
    if options.json:
        print_json(
            {
                **summary(dataset),
                "already_there": outcome.already_there,
                "latents": latents.model_dump(mode="json"),
            }
        )
        return 0
    if outcome.already_there:
        stdout().print(f"{options.out} was already complete; nothing changed", markup=False, soft_wrap=True)
    _print_chosen(latents)
    if latents.seed is not None:
        stdout().print(
            f"clips longer than their bucket: choices of frames stored of each: {config.latents.views} (latents.views),"
            " taken in turn; on the fly every pass draws another",
            markup=False,
            soft_wrap=True,
        )
    print_accounting(dataset)
    return 0


def _print_chosen(latents: Latents) -> None:
    rows = [
        (
            f"{one.frames}x{one.height}x{one.width}",
            one.samples,
            "unknown" if one.encode_s is None else f"{one.encode_s:.3g}",
            "unknown" if one.step_share is None else f"{one.step_share:.0%}",
            f"{one.latent_bytes / 1e6:.3g}",
            f"{one.clip_bytes / 1e6:.3g}",
            "stored" if one.latent else "on the fly",
        )
        for one in latents.buckets
    ]
    head = ["bucket", "samples", "encode s", "of a step", "latents MB", "clip MB", "chosen"]
    out = stdout()
    out.print(table(f"encoded on {latents.device}, {latents.dtype}; numbers of one sample", head, rows))
    for one in latents.buckets:
        if one.samples:
            why = f"{one.frames}x{one.height}x{one.width}: {one.why}"
            out.print(why, markup=False, soft_wrap=True)
