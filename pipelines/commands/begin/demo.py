"""Run the whole journey on this machine: raw footage, dataset, report, a short training run.

It takes about 90 seconds on two cores, and renders its own footage without --videos. OUT/buckets.yaml and
OUT/train.yaml are the configurations it used, to change and run again.
"""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel

from loader.dataset import Dataset, verify
from loader.errors import RunError
from loader.storage import open_storage
from pipelines.configuration.commented import commented_yaml
from pipelines.configuration.config import resolve
from pipelines.terminal.arguments import add_config
from pipelines.terminal.console import print_json, stderr, stdout, table
from pipelines.terminal.files import write_whole
from pipelines.terminal.program import hint, program

if TYPE_CHECKING:
    from pipelines.configuration.train_config import TrainRunConfig
    from pipelines.report.buckets import ReportConfig
    from train.loop.loop import TrainResult

CONFIG = Path(__file__).parents[2] / "configs" / "demo.yaml"


class Next(NamedTuple):
    """A command to try next, and what it does."""

    does: str
    command: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave demo`."""
    parser.add_argument("--videos", type=Path, metavar="DIR", help="folder of your own raw videos")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="output folder (default: demo-out)"
    )
    add_config(parser, "YAML configuration (default: the package's)", default=str(CONFIG))


def run(options: argparse.Namespace) -> int:
    """Run the whole journey and end with a table of what was made and commands to try next."""
    from curate.config import CurateConfig
    from curate.run.curate import curate
    from loader.read.stream_config import StreamConfig
    from pipelines.commands.data.curate import kept_files, print_accounting, summary
    from pipelines.commands.look.report import print_buckets, write_report
    from pipelines.commands.train.train import train
    from pipelines.configuration.train_config import TrainRunConfig
    from pipelines.report.buckets import ReportConfig
    from pipelines.terminal.curation_progress import curation_progress
    from train.config.run import TrainConfig

    class DemoConfig(BaseModel, frozen=True, extra="forbid"):
        curate: CurateConfig
        stream: StreamConfig
        train: TrainConfig

    config = resolve(DemoConfig, options.config, options.set)
    notes = stderr()
    videos = options.videos or _render(options.out / "footage")
    place = options.out / "dataset"
    notes.print("1 of 3: raw video to clips and shards", style="bold")
    with curation_progress() as progress:
        kept = kept_files(config.curate, [str(videos)], str(place))
        curate([str(videos)], str(place), config.curate, progress, beside=kept)
    dataset = Dataset(open_storage(place, config.curate.storage))
    if not options.json:
        print_accounting(dataset)
    notes.print("2 of 3: bucket report", style="bold")
    report_config = ReportConfig(buckets=config.stream.buckets, storage=config.curate.storage)
    report = write_report(dataset, report_config)
    if not options.json:
        print_buckets(dataset, report_config)
    notes.print("3 of 3: a short training run", style="bold")
    run_config = TrainRunConfig(
        dataset=str(place), out=options.out / "train", stream=config.stream, train=config.train
    )
    _write_configs(options.out, report_config, run_config)
    result = train(run_config)
    checked = verify(dataset.storage)
    if not checked.ok:
        raise RunError(f"the demo's dataset does not verify: {checked.problems[0]}")
    following = try_next(videos, options.out)
    if options.json:
        said = [one._asdict() for one in following]
        print_json({**summary(dataset), "report": report, "train": _training(result), "try_next": said})
        return 0
    _finish(options, videos, dataset, report, result)
    out = stdout()
    out.print("try next", style="bold")
    width = max(len(one.command) for one in following)
    for one in following:
        out.print(f"  {one.command:{width}}  # {one.does}", soft_wrap=True)
    return 0


def try_next(videos: Path, out: Path) -> list[Next]:
    """Return commands that run as they are, after a demo of these videos in this folder."""
    dataset, longer = out / "dataset", out / "longer"
    steps = ("--world-size", 2, "--microbatches", 2, "--steps", 4)
    train = (
        "--config",
        out / "train.yaml",
        "--set",
        f"out={longer}",
        "--set",
        "train.schedule.total_steps=120",
    )
    watched = f"{program('tensorboard', 'tensorboard.main')} --logdir {shlex.quote(str(out / 'train'))}"
    return [
        Next("check every byte of the dataset", hint("verify", dataset)),
        Next("count the buckets of this file", hint("report", dataset, "--config", out / "buckets.yaml")),
        Next("plan the steps of 2 GPUs", hint("plan", dataset, *steps)),
        Next("train longer", hint("train", *train)),
        Next("watch the loss", watched),
        Next("curate videos into a dataset of their own", hint("curate", videos, "--out", "my-dataset")),
        Next("explain a key of these files", hint("config", "explain", "memory_tokens")),
    ]


def _write_configs(out: Path, buckets: "ReportConfig", training: "TrainRunConfig") -> None:
    """Write the configurations of the report and of training, with a comment behind every key."""
    for name, command, config in (("buckets", "report DATASET", buckets), ("train", "train", training)):
        head = [f"Configuration of `reelweave {command} --config {out / name}.yaml`, as the demo used it."]
        write_whole(out / f"{name}.yaml", commented_yaml(config, head).encode())


def _render(folder: Path) -> Path:
    from pipelines.footage import make_footage

    with stderr().status("rendering footage"):
        make_footage(folder)
    return folder


def _training(result: "TrainResult") -> dict[str, object]:
    return {
        "steps": result.steps,
        "first_loss": result.first_loss,
        "last_loss": result.last_loss,
        "samples_per_s": result.samples_per_s,
        "checkpoint": result.checkpoint,
    }


def _finish(
    options: argparse.Namespace, videos: Path, dataset: Dataset, report: str, result: "TrainResult"
) -> None:
    from pipelines.commands.train.train import loss_change

    totals = dataset.manifest.totals
    place, out = options.out / "dataset", options.out
    made = [
        ("raw footage", f"{totals.sources} files", str(videos)),
        ("dataset", f"{totals.samples} clips in {len(dataset.manifest.shards)} shard(s), verified", str(place)),
        ("report", "open it in a browser", report),
        ("training", f"{result.steps} steps, {loss_change(result)}", str(out / "train")),
    ]  # fmt: skip
    console = stdout()
    console.print(table("made", ["what", "how much", "where"], made))
