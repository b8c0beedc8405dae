"""Options of `reelweave sample`, and what they ask for."""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.storage_options import add_storage_arguments
from reelweave.pipelines.sampling.requests import Request, parse_size, read_requests
from reelweave.pipelines.sampling.run_defaults import read_run_defaults
from reelweave.train.sampling.cache.config import BlockCacheConfig
from reelweave.train.sampling.config import SampleConfig

_MAX_FPS = 1000
_PUBLISHED = "published"
_OTHER_VIDEOS = (".avi", ".gif", ".m4v", ".mkv", ".mov", ".webm")

_FLAGS = {
    "frames": int,
    "steps": int,
    "timesteps": str,
    "solver": str,
    "guidance": float,
    "guidance_2": float,
    "negative_prompt": str,
    "rescale": float,
    "image_guidance": float,
    "seed": int,
}

_RUN_DEFAULTS = {
    "frames": "the most of the run's buckets",
    "guidance": "5; 1 where the run saw no video without its caption",
}
"""Defaults that the run decides, in words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave sample`."""
    _add_models(parser)
    _add_videos(parser)
    _add_cache(parser)
    _add_execution(parser)
    add_storage_arguments(parser)


def _add_models(parser: argparse.ArgumentParser) -> None:
    """Add the options of where weights come from."""
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--checkpoint",
        metavar="C",
        help="a checkpoint, or a run's folder for its newest; local or on s3://",
    )
    models.add_argument(
        "--config",
        metavar="FILE",
        help="configuration of `reelweave train`, for the published model that it names, before any training",
    )
    parser.add_argument(
        "--lora",
        type=Path,
        metavar="PATH",
        help="adapters of export or another tool, a folder or .safetensors, for --config",
    )
    parser.add_argument(
        "--checkpoint-2",
        metavar="C",
        help="checkpoint of the other one of Wan 2.2's two experts, for --checkpoint (default: as published)",
    )
    parser.add_argument(
        "--lora-2",
        type=Path,
        metavar="PATH",
        help="exported adapters of the other expert, for --config or --checkpoint",
    )


def _add_videos(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is made: captions, size, and the keys of `SampleConfig`."""
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="caption of the video")
    prompts.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="a caption per line, or FILE.jsonl with objects: prompt, negative_prompt, seed, size, frames",
    )
    parser.add_argument(
        "--size",
        metavar="HEIGHTxWIDTH",
        help="size in pixels, such as 64x112 (default: the largest of the run's buckets)",
    )
    for name, kind in _FLAGS.items():
        field = SampleConfig.model_fields[name]
        needs_no_default = field.is_required() or field.default in (None, "")
        default = _RUN_DEFAULTS.get(name, str(field.default))
        help_text = (
            field.description
            if needs_no_default and name not in _RUN_DEFAULTS
            else f"{field.description} (default: {default})"
        )
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            metavar=f"T,T,...|{_PUBLISHED}" if name == "timesteps" else name.upper(),
            help=help_text,
        )
    parser.add_argument(
        "--image",
        metavar="FILE",
        help="picture, or video whose first frame is taken, that the video begins with; for image-to-video models",
    )
    parser.add_argument(
        "--batched", action="store_true", help=SampleConfig.model_fields["batched"].description
    )
    parser.add_argument(
        "--image-frames",
        type=int,
        default=1,
        metavar="N",
        help="frames to take from the beginning of --image (default: 1)",
    )


def _add_cache(parser: argparse.ArgumentParser) -> None:
    """Add the options of the cache of blocks."""
    parser.add_argument(
        "--cache",
        choices=("first_block", "teacache"),
        help="skip blocks that change little, as far as --cache-min-psnr allows; approximate",
    )
    for option, key, metavar in (("threshold", "threshold", "X"), ("min-psnr", "min_psnr_db", "DB")):
        field = BlockCacheConfig.model_fields[key]
        help_text = f"{field.description} (default: {field.default:g})"
        parser.add_argument(f"--cache-{option}", type=float, metavar=metavar, help=help_text)


def _add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options of ranks, memory and files, which do not change what a video shows."""
    parser.add_argument(
        "--layout",
        default="together",
        metavar="L",
        help="use of the ranks under torchrun (default: together). together: all make each video, exactly, in the"
        " layout that the advisor expects to be the fastest. prompts: each makes its own videos. Or degrees, such as"
        " cfg=2,ulysses=4 (prompts, cfg, lp, ring, ulysses, vae_ranks). For a model that does not fit one GPU:"
        " training (train.parallel of its run), or degrees such as tp=2,dp_shard=4 (dp_replicate, dp_shard, tp, pp,"
        " ring, ulysses)",
    )
    parser.add_argument(
        "--decode-gib",
        type=float,
        metavar="GIB",
        help="memory that a decode may take: tiles shrink until they fit (default: what is free on the GPU)",
    )
    parser.add_argument(
        "--fps",
        type=int,
        metavar="FPS",
        help="frames per second of the file (default: those that the model was trained at, otherwise 24)",
    )
    parser.add_argument(
        "--weights",
        choices=("ema", "model"),
        help="weights to use (default: ema if the run has it, else model)",
    )
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="device (default: auto, a GPU if there is one)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="PATH",
        help="a name that ends in .mp4: the video to write, for --prompt. Any other: a folder, which a restart"
        " completes (default: sample.mp4, for --prompts samples)",
    )


class ParsedOptions(NamedTuple):
    """Options of the command, parsed and checked.

    Attributes:
        config: configuration of all videos.
        requests: the videos.
        out: file or folder to write.
        note: what was left to the run, for people; empty: nothing.
    """

    config: SampleConfig
    requests: list[Request]
    out: Path
    note: str


def read_options(options: argparse.Namespace) -> ParsedOptions:
    """Return what the options ask for, completed by the run's own shapes.

    Raises:
        UsageError: An option is wrong, or options do not go together.
    """
    if options.config is not None and options.weights is not None:
        raise UsageError("--weights belongs to --checkpoint; a published model has one kind")
    requests = _requests(options)
    out = options.out or Path("sample.mp4" if options.prompts is None else "samples")
    if options.prompts is not None and is_video(out):
        raise UsageError(
            f"--out {out}: --prompts makes a folder of videos; give a name that does not end in .mp4"
        )
    if out.suffix.lower() in _OTHER_VIDEOS:
        raise UsageError(f"--out {out}: the video is an MP4 file; give a name that ends in .mp4")
    values, note = _run_values(options)
    return ParsedOptions(_config(options, values), requests, out, note)


def is_video(out: Path) -> bool:
    """Return whether ``--out`` names one video, and not a folder of videos."""
    return out.suffix.lower() == ".mp4"


def _run_values(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return size, frames and guidance that are left out, as the run has them, and a line for people.

    Raises:
        UsageError: the run does not say them.
    """
    wants_shape = options.size is None or options.frames is None
    wants_guidance = options.checkpoint is not None and options.guidance is options.guidance_2 is None
    # A negative prompt needs no model that knows videos without captions.
    wants_guidance = wants_guidance and not options.negative_prompt and options.image_guidance is None
    if not wants_shape and not wants_guidance:
        return {}, ""
    run = read_run_defaults(options)
    values: dict[str, Any] = {}
    notes: list[str] = []
    size, frames = run.largest()
    if options.size is None:
        if size is None:
            raise UsageError(
                f"give --size, such as --size 64x112: {run.source} does not say the sizes of its run"
            )
        values["height"], values["width"] = size
        notes.append(f"--size {size[0]}x{size[1]}")
    if options.frames is None:
        if frames is None:
            raise UsageError(
                f"give --frames, such as --frames 17: {run.source} does not say those of its run"
            )
        values["frames"] = frames
        notes.append(f"--frames {frames}")
    notes = [f"{' '.join(notes)}, the largest of its buckets"] if notes else []
    if wants_guidance and not run.knows_empty_caption:
        values["guidance"] = 1.0
        notes.append("--guidance 1, since it was trained with objective.caption_dropout=0")
    return values, f"{run.source}: {'; '.join(notes)}" if notes else ""


def _requests(options: argparse.Namespace) -> list[Request]:
    if options.prompts is None:
        if options.image_frames < 1:
            raise UsageError(f"--image-frames {options.image_frames} must be at least 1")
        if options.image is None and options.image_frames != 1:
            raise UsageError("--image-frames belongs to --image: add it, or leave it out")
        if not options.prompt.strip():
            raise UsageError("--prompt is empty; give the caption of the video")
        return [Request(prompt=options.prompt, image=options.image, image_frames=options.image_frames)]
    if options.image is not None:
        raise UsageError("--image is for one --prompt; name the images of many in the lines of a .jsonl file")
    return read_requests(options.prompts)


def _config(options: argparse.Namespace, run: dict[str, Any]) -> SampleConfig:
    """Return the configuration of the options; ``run`` has what they leave to the run."""
    size = {}
    if options.size is not None:
        try:
            size = dict(zip(("height", "width"), parse_size(options.size), strict=True))
        except ValueError as error:
            raise UsageError(f"--size {error}") from error
    if options.decode_gib is not None and not options.decode_gib > 0:
        raise UsageError(f"--decode-gib {options.decode_gib:g} must be above 0")
    if options.fps is not None and not 1 <= options.fps <= _MAX_FPS:
        raise UsageError(f"--fps {options.fps} must be from 1 to {_MAX_FPS}")
    # Options that are given; all others have the defaults of the configuration.
    values: dict[str, Any] = {name: value for name in _FLAGS if (value := getattr(options, name)) is not None}
    if values.get("timesteps", _PUBLISHED) != _PUBLISHED:
        values["timesteps"] = tuple(values["timesteps"].split(","))
    # Limits of the cache mean nothing without one.
    thresholds = {"threshold": options.cache_threshold, "min_psnr_db": options.cache_min_psnr}
    thresholds = {name: value for name, value in thresholds.items() if value is not None}
    if options.cache is not None:
        values["cache"] = {"kind": options.cache, **thresholds}
    elif thresholds:
        raise UsageError(
            "--cache-threshold and --cache-min-psnr belong to --cache: add it, or leave them out"
        )
    try:
        return SampleConfig(batched=options.batched, **run, **size, **values)
    except ValidationError as error:
        # The configuration's own words, with the option that it was set by.
        first = error.errors()[0]
        if not first["loc"]:
            raise UsageError(f"--timesteps: {first['msg'].removeprefix('Value error, ')}") from error
        name = (
            "-".join(part for part in first["loc"] if isinstance(part, str) and part.isidentifier())
            .replace("_", "-")
            .removesuffix("-db")
        )
        raise UsageError(f"--{name} cannot be {first['input']!r}: {first['msg']}") from error
