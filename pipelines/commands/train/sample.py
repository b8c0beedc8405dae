"""Generate a video from a caption with a trained checkpoint."""

import argparse
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loader.errors import UsageError
from pipelines.configuration.storage_options import add_storage_arguments, storage_config
from pipelines.terminal.console import print_json, progress_bars, stdout
from pipelines.terminal.files import write_whole
from train.sampling.config import SampleConfig

_FLAGS = {"frames": int, "steps": int, "solver": str, "guidance": float, "seed": int}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave sample`."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="C",
        help="a checkpoint, or a run's folder for its newest; local or on s3://",
    )
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="caption of the video")
    parser.add_argument(
        "--size", required=True, metavar="HEIGHTxWIDTH", help="size in pixels, such as 64x112"
    )
    for name, kind in _FLAGS.items():
        field = SampleConfig.model_fields[name]
        said = field.description if field.is_required() else f"{field.description} (default: {field.default})"
        parser.add_argument(
            f"--{name}", type=kind, required=field.is_required(), metavar=name.upper(), help=said
        )
    parser.add_argument(
        "--fps", type=int, default=24, metavar="FPS", help="frames per second of the file (default: 24)"
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
        default=Path("sample.mp4"),
        metavar="FILE",
        help="video to write (default: sample.mp4)",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Generate one video and write it."""
    config = _config(options)
    from pipelines.terminal.mp4 import encode_mp4
    from train.distributed.world import join
    from train.sampling.generate import generate
    from train.sampling.trained import load_trained

    with join(options.device) as world, progress_bars() as bars:
        trained = load_trained(options.checkpoint, world.device, options.weights, storage_config(options))
        task = bars.add_task("sampling", total=config.steps, count="", note="")
        video_BCTHW = generate(
            trained.bundle, trained.config, config, [options.prompt], lambda: bars.advance(task)
        )
    write_whole(options.out, encode_mp4(video_BCTHW[0].cpu().numpy(), options.fps), "--out")
    made: dict[str, Any] = {
        "out": str(options.out),
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "weights": trained.weights,
        "prompt": options.prompt,
        "fps": options.fps,
        **config.model_dump(),
    }
    if options.json:
        print_json(made)
    else:
        stdout().print(
            f"{options.out}: {config.frames} frames of {config.height}x{config.width} at {options.fps} fps,"
            f" {trained.weights} weights of {trained.checkpoint}, seed {config.seed}",
            markup=False,
            soft_wrap=True,
        )
    return 0


def _config(options: argparse.Namespace) -> SampleConfig:
    height, cross, width = options.size.partition("x")
    if not (cross and height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise UsageError(f"--size {options.size} is no HEIGHTxWIDTH; write it as --size 64x112")
    if int(height) % 2 or int(width) % 2:
        raise UsageError(f"--size {options.size}: an MP4 in 4:2:0 needs an even height and width")
    if options.fps < 1:
        raise UsageError(f"--fps {options.fps} must be at least 1")
    given = {name: value for name in _FLAGS if (value := getattr(options, name)) is not None}
    try:
        return SampleConfig(height=int(height), width=int(width), **given)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{first['loc'][0]} cannot be {first['input']!r}: {first['msg']}") from error
