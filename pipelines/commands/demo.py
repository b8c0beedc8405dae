"""Raw footage to dataset to report to a short training run, on this machine, in a few minutes.

Renders its own footage when given none.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from loader.dataset import Dataset, verify
from loader.errors import RunError
from loader.storage import open_storage
from pipelines.configuration.config import resolve
from pipelines.terminal.console import print_json, stderr, stdout, table

if TYPE_CHECKING:
    from train.loop.loop import TrainResult

CONFIG = Path(__file__).parent.parent / "configs" / "demo.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--videos", type=Path, metavar="DIR", help="your own raw videos")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), metavar="DIR", help="default: demo-out")
    parser.add_argument("--config", type=Path, default=CONFIG, metavar="FILE", help="YAML configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")


def run(options: argparse.Namespace) -> int:
    """Runs the whole journey and ends with a table of what was made."""
    from curate.config import CurateConfig
    from curate.run.curate import curate
    from loader.read.stream_config import StreamConfig
    from pipelines.commands.curate import curation_progress, print_accounting, summary
    from pipelines.commands.report import ReportConfig, print_buckets, write_report
    from pipelines.commands.train import train
    from pipelines.configuration.train_config import TrainRunConfig
    from train.config.run import TrainConfig

    class DemoConfig(BaseModel, frozen=True, extra="forbid"):
        curate: CurateConfig
        stream: StreamConfig
        train: TrainConfig

    config = resolve(DemoConfig, options.config, options.set)
    notes = stderr()
    videos = options.videos or _render(options.out / "footage")
    place = options.out / "dataset"
    notes.rule("1 of 3: raw video to clips and shards", align="left")
    with curation_progress() as progress:
        curate([str(videos)], str(place), config.curate, progress)
    dataset = Dataset(open_storage(place, config.curate.storage))
    if not options.json:
        print_accounting(dataset)
    notes.rule("2 of 3: bucket report", align="left")
    report_config = ReportConfig(buckets=config.stream.buckets, storage=config.curate.storage)
    report = write_report(dataset, report_config)
    if not options.json:
        print_buckets(dataset, report_config)
    notes.rule("3 of 3: a short training run", align="left")
    run_config = TrainRunConfig(
        dataset=str(place), out=options.out / "train", stream=config.stream, train=config.train
    )
    result = train(run_config)
    checked = verify(dataset.storage)
    if not checked.ok:
        raise RunError(f"the demo's dataset does not verify: {checked.problems[0]}")
    if options.json:
        print_json({**summary(dataset), "report": report, "train": _training(result)})
        return 0
    _finish(options, videos, dataset, report, result)
    return 0


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
    from pipelines.commands.train import loss_change

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
    following = [
        ("prove the dataset whole", f"reelweave verify {place}"),
        ("count buckets for your own model", f"reelweave report {place} --config buckets.yaml"),
        ("curate your own videos", "reelweave curate VIDEOS --out my-dataset"),
        ("watch the loss", f"tensorboard --logdir {out / 'train'}"),
        ("stream it into your own loop", "README.md, 'Stream'"),
    ]
    console.print(table("try next", ["to", "run"], following))
