"""Encode a dataset's clips and captions once, into a new version of the dataset.

--config is that of `reelweave train`, which then trains from the new version without loading a VAE. The same command
finishes an interrupted run; DATASET is only read. OUT/latents.yaml keeps the resolved configuration.
"""

import argparse
import json
from typing import TYPE_CHECKING

from reelweave.loader.dataset.latents import Latents
from reelweave.loader.settings import unread_keys
from reelweave.pipelines.commands.data.curate import print_accounting, summary
from reelweave.pipelines.configuration.kept import kept_yaml, repeated_with
from reelweave.pipelines.terminal.arguments import add_config, add_log_format
from reelweave.pipelines.terminal.console import print_json, stderr, stdout, table
from reelweave.pipelines.terminal.curation_progress import curation_progress

if TYPE_CHECKING:
    from reelweave.train.config.parts import TextConfig
    from reelweave.train.latents.cut_count import CutCount

KEPT = "latents.yaml"
"""Path in a version of the configuration it was made with; none of its checksums covers it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave latents`."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix of a finished dataset")
    add_config(parser, "YAML configuration of `reelweave train`", required=True)
    parser.add_argument(
        "--out", required=True, metavar="URI", help="folder or s3:// prefix of the new version"
    )
    add_log_format(parser)


def run(options: argparse.Namespace) -> int:
    """Encode, and print what is stored of each bucket and the state of every sample."""
    from reelweave.loader.blend.reading import is_blend_file
    from reelweave.loader.buckets.assignment import assign
    from reelweave.loader.dataset import open_dataset
    from reelweave.pipelines.configuration.model_rate import other_rates, resolve_run
    from reelweave.pipelines.latents.run import make_latents

    overrides = [f"dataset={json.dumps(options.dataset)}", f"out={json.dumps(options.out)}"]
    config = resolve_run(options.config, [*overrides, *options.set])
    for line in unread_keys(config.latents, "latents"):
        stderr().print(f"note: {line}", markup=False, soft_wrap=True)
    if not is_blend_file(options.dataset):  # which is refused below
        for sentence in other_rates(config, open_dataset(options.dataset, config.storage).plan_index):
            stderr().print(sentence, markup=False, soft_wrap=True)
    command = ["latents", options.dataset, "--out", options.out]
    command += repeated_with(options.out, KEPT, config.storage)
    with curation_progress(options.log_format, options.out) as progress:
        outcome = make_latents(
            options.dataset, options.out, config, progress, {KEPT: kept_yaml(config, command).encode()}
        )
    dataset, latents = outcome.dataset, outcome.dataset.latents
    assert latents is not None
    without = assign(dataset.plan_index, config.stream.buckets).unassigned.counts()
    if options.json:
        print_json(
            {
                **summary(dataset),
                "already_there": outcome.already_there,
                "latents": latents.model_dump(mode="json"),
                "without_bucket": without,
                "cut_captions": outcome.cut_count.cut,
                "cut_pooled_captions": outcome.cut_count.cut_pooled,
            }
        )
        return 0
    if outcome.already_there:
        stdout().print(f"{options.out} was already complete; nothing changed", markup=False, soft_wrap=True)
    _print_chosen(latents)
    for reason, count in without.items():
        some = "sample fits no bucket and has" if count == 1 else "samples fit no bucket and have"
        stdout().print(f"{count:,} {some} no latents: {reason}", markup=False, soft_wrap=True)
    _print_cut(outcome.cut_count, config.train.text)
    if latents.seed is not None:
        stdout().print(
            f"clips longer than their bucket: choices of frames stored of each: {config.latents.views} (latents.views),"
            " taken in turn; on the fly every pass draws another",
            markup=False,
            soft_wrap=True,
        )
    print_accounting(dataset)
    return 0


def _print_cut(count: "CutCount", text: "TextConfig") -> None:
    """Print how many captions each encoder of text cuts off."""
    pooled = getattr(text, "pooled", None)  # of published encoders alone
    limits = [("text.max_text_tokens", text.max_text_tokens, count.cut)]
    if pooled is not None:
        limits.append(("text.pooled.max_text_tokens", pooled.max_text_tokens, count.cut_pooled))
    for key, tokens, cut in limits:
        if cut:
            stdout().print(
                f"{cut:,} of {count.captions:,} captions have more than {key} = {tokens} tokens; what is stored of them"
                " lacks the rest",
                markup=False,
                soft_wrap=True,
            )


def _print_chosen(latents: Latents) -> None:
    rows = [
        (
            f"{bucket.frames}x{bucket.height}x{bucket.width}",
            bucket.samples,
            "unknown" if bucket.encode_s is None else f"{bucket.encode_s:.3g}",
            "unknown" if bucket.step_share is None else f"{bucket.step_share:.0%}",
            f"{bucket.latent_bytes / 1e6:.3g}",
            f"{bucket.clip_bytes / 1e6:.3g}",
            "stored" if bucket.latent else "on the fly",
        )
        for bucket in latents.buckets
    ]
    head = ["bucket", "samples", "encode s", "of a step", "latents MB", "clip MB", "chosen"]
    out = stdout()
    out.print(table(f"encoded on {latents.device}, {latents.dtype}; numbers of one sample", head, rows))
    for latent_bucket in latents.buckets:
        if latent_bucket.samples:
            why = f"{latent_bucket.frames}x{latent_bucket.height}x{latent_bucket.width}: {latent_bucket.why}"
            out.print(why, markup=False, soft_wrap=True)
