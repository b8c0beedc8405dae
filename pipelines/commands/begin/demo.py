"""Run the whole journey on this machine: raw footage, dataset, report, training, videos of the trained model.

It takes less than three minutes on two cores, and renders its own footage without --videos. The model learns a few
clips by heart. OUT/buckets.yaml and OUT/train.yaml are the configurations it used, to change and run again.
"""

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import yaml
from pydantic import BaseModel

from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.dataset import Dataset, verify
from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage
from reelweave.loader.text import pluralize
from reelweave.pipelines.configuration.commented import commented_yaml
from reelweave.pipelines.configuration.config import Given, read_given
from reelweave.pipelines.terminal.arguments import Parser, add_config, add_global
from reelweave.pipelines.terminal.console import print_json, stderr, stdout, table
from reelweave.pipelines.terminal.files import write_whole
from reelweave.pipelines.terminal.program import hint, program

if TYPE_CHECKING:
    from reelweave.pipelines.configuration.train_config import TrainRunConfig
    from reelweave.pipelines.evaluation.shown import FirstFrames
    from reelweave.pipelines.report.buckets import ReportConfig
    from reelweave.train.loop.loop import TrainResult

CLIPS = 3
"""Number of clips that the model learns: as many as it can in a minute."""
REPETITIONS = 8
"""Draws of a clip in an epoch, so that a batch is full."""
SAMPLE_STEPS = 20
FEW = "few.yaml"
PROMPTS = "prompts.jsonl"
CONFIG = Path(__file__).parents[2] / "configs" / "demo.yaml"

RECIPE = "standard"
"""Recipe below the curation of the configuration."""


class Next(NamedTuple):
    """A command to try next, and what it does."""

    does: str
    command: str


class LearnedClip(NamedTuple):
    """A learned clip, and how a video of its caption compares (`reelweave.pipelines.evaluation.shown`)."""

    key: str
    prompt: str
    psnr_db: float
    unlearned_db: float
    shown: bool


@dataclass(frozen=True)
class Chosen:
    """Clips that the model learns.

    Attributes:
        rows: their rows in the dataset's index.
        captions: their captions.
        frames: number of frames of their bucket.
        size: its height and width.
        first_frames: first frames of all clips of the bucket, compared with videos of the model.
    """

    rows: list[int]
    captions: list[str]
    frames: int
    size: tuple[int, int]
    first_frames: "FirstFrames"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave demo`."""
    parser.add_argument("--videos", type=Path, metavar="DIR", help="folder of your own raw videos")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), metavar="DIR", help="output folder (default: demo-out)"
    )
    add_config(parser, "YAML configuration (default: the package's)", default=str(CONFIG))


def run(options: argparse.Namespace) -> int:
    """Run the whole journey and end with a table of what was made and commands to try next."""
    from reelweave.curate.config import CurateConfig
    from reelweave.curate.run.curate import curate
    from reelweave.loader.read.stream_config import StreamConfig
    from reelweave.pipelines.commands.data.curate import kept_files, print_accounting, summary
    from reelweave.pipelines.commands.look import report as report_command
    from reelweave.pipelines.commands.look.report import print_buckets, write_report
    from reelweave.pipelines.commands.train import sample
    from reelweave.pipelines.commands.train.train import train
    from reelweave.pipelines.configuration.recipes.given import describe_recipe
    from reelweave.pipelines.configuration.train_config import TrainRunConfig
    from reelweave.pipelines.report.buckets import ReportConfig
    from reelweave.pipelines.terminal.curation_progress import curation_progress
    from reelweave.train.config.run import TrainConfig
    from reelweave.train.loop.interrupt import EXIT_STOPPED

    class DemoConfig(BaseModel, frozen=True, extra="forbid"):
        curate: CurateConfig
        stream: StreamConfig
        train: TrainConfig

    config = _with_recipe(read_given(options.config, options.set)).validate(DemoConfig)
    notes = stderr()
    videos = options.videos or _render(options.out / "footage")
    dataset_folder = options.out / "dataset"
    # From raw footage, rendered or given, to a dataset.
    notes.print("1 of 4: raw video to clips and shards", style="bold")
    for line in describe_recipe(config.curate):
        notes.print(line, markup=False, soft_wrap=True)
    with curation_progress() as progress:
        files = kept_files(config.curate, [str(videos)], str(dataset_folder))
        curate([str(videos)], str(dataset_folder), config.curate, progress, beside=files)
    dataset = Dataset(open_storage(dataset_folder, config.curate.storage))
    if not options.json:
        print_accounting(dataset)
    # Its page, with the buckets that training will use.
    notes.print("2 of 4: bucket report", style="bold")
    report_config = ReportConfig(buckets=config.stream.buckets, storage=config.curate.storage)
    with curation_progress() as progress:
        report = write_report(dataset, report_config, progress)
    if not options.json:
        print_buckets(dataset, report_config)
    notes.print("3 of 4: a short training run", style="bold")
    # A run of few clips, so that it knows them by heart within minutes.
    chosen = _choose(dataset, config.stream.buckets)
    if chosen is not None:
        _write_chosen(options.out, chosen)
        notes.print(f"to be learned by heart, {pluralize(len(chosen.rows), 'clip')} of different captions:")
        for row, caption in zip(chosen.rows, chosen.captions, strict=True):
            notes.print(f"  {dataset.row(row)['key']}  {caption}", soft_wrap=True)
    run_config = TrainRunConfig(
        dataset=str(dataset_folder if chosen is None else options.out / FEW),
        out=options.out / "train",
        stream=config.stream,
        train=config.train,
    )
    _write_configs(options.out, report_config, run_config)
    result = train(run_config)
    if result.stopped:
        notes.print("stopped by a signal; the same command goes on", style="bold")
        return EXIT_STOPPED
    _run(report_command, "report", options.out / "train")
    notes.print("4 of 4: videos of the trained model, from noise and a caption alone", style="bold")
    # Videos from their captions alone, and how near each comes to its clip.
    learned: list[LearnedClip] = []
    if chosen is None:
        notes.print("none: no clip has a caption, so that nothing can be asked of the model")
    else:
        _run(sample, "sample", *_sample_words(options.out, chosen))
        samples = ("--samples", options.out / "samples")
        _run(report_command, "report", dataset_folder, "--config", options.out / "buckets.yaml", *samples)
        learned = _compare_learned(options.out, dataset, chosen)
    # What was made is proven, and shown with what to try next.
    checked = verify(dataset.storage)
    if not checked.ok:
        raise RunError(f"the demo's dataset does not verify: {checked.problems[0]}")
    following = try_next(videos, options.out)
    if options.json:
        commands = [command._asdict() for command in following]
        shown = [clip._asdict() for clip in learned]
        pages = {"report": report, "run_page": str(run_page(options.out))}
        result_json = {**pages, "train": _training(result), "learned": shown, "try_next": commands}
        print_json({**summary(dataset), **result_json})
        return 0
    _finish(options, videos, dataset, report, result, learned)
    out = stdout()
    out.print("try next", style="bold")
    width = max(len(step.command) for step in following)
    for next_step in following:
        out.print(f"  {next_step.command:{width}}  # {next_step.does}", soft_wrap=True)
    return 0


def _with_recipe(given: Given) -> Given:
    """Return the values above the recipe of the demo, unless they name one or are none of a curation."""
    from reelweave.pipelines.configuration.recipes.files import read_recipe
    from reelweave.pipelines.configuration.recipes.given import values_above

    values = given.values.get("curate", {})
    if not isinstance(values, dict) or "recipe" in values:
        return given
    settings, keys = values_above(read_recipe(RECIPE), values)
    below = dict.fromkeys((f"curate.{key}" for key in keys), f"recipe {RECIPE}")
    return given._replace(values={**given.values, "curate": settings}, below=below)


def run_page(out: Path) -> Path:
    """Return the path of the page of the demo's training run."""
    return out / "train/report/index.html"


def try_next(videos: Path, out: Path) -> list[Next]:
    """Return commands that run as they are, after a demo of these videos in this folder."""
    dataset, longer = out / "dataset", out / "longer"
    steps = ("--world-size", 2, "--microbatches", 2, "--steps", 4)
    curate = ("--config", dataset / "curate.yaml")  # by default clips last two seconds or more
    train = (
        "--config",
        out / "train.yaml",
        "--set",
        f"out={longer}",
        "--set",
        "train.schedule.total_steps=600",
    )
    watched = f"{program('tensorboard', 'tensorboard.main')} --logdir {shlex.quote(str(out / 'train'))}"
    return [
        Next("check every byte of the dataset", hint("verify", dataset)),
        Next("count the buckets of this file", hint("report", dataset, "--config", out / "buckets.yaml")),
        Next("plan the steps of 2 GPUs", hint("plan", dataset, *steps)),
        Next("train longer", hint("train", *train)),
        Next("watch the loss", watched),
        Next(
            "curate videos into a dataset of their own",
            hint("curate", videos, "--out", "my-dataset", *curate),
        ),
        Next("explain a key of these files", hint("config", "explain", "memory_tokens")),
    ]


def _choose(dataset: Dataset, buckets: BucketConfig) -> Chosen | None:
    """Return clips to learn, of the most common bucket, which nothing without learning comes near to.

    None if no clip of a bucket has a caption: then nothing could be asked of the model.
    """
    from reelweave.pipelines.evaluation.shown import FirstFrames

    assignment = assign(dataset.plan_index, buckets)
    bucket_of = dict(enumerate(assignment.bucket_of.tolist()))
    captioned = [row for row, bucket in bucket_of.items() if bucket >= 0 and dataset.row(row)["caption"]]
    if not captioned:
        return None
    [(common, _)] = Counter(bucket_of[row] for row in captioned).most_common(1)
    bucket = assignment.buckets[common]
    size = (bucket.height, bucket.width)
    rows = [row for row in captioned if bucket_of[row] == common]
    first_frames = FirstFrames(dataset, rows, bucket.frames, size)
    chosen = first_frames.distinct(CLIPS)
    captions = [dataset.row(row)["caption"] for row in chosen]
    return Chosen(chosen, captions, bucket.frames, size, first_frames)


def _write_chosen(out: Path, chosen: Chosen) -> None:
    """Write the blend of the chosen clips, and their captions as prompts."""
    nodes = [
        {
            "path": "dataset",
            "name": f"clip-{row}",
            "subset": {"range": [row, row + 1]},
            "repetitions": REPETITIONS,
        }
        for row in chosen.rows
    ]
    blend = {"splits": {"train": {"blend_epochized": nodes}}}
    head = f"# The clips that `reelweave demo` learns, each {REPETITIONS} times in an epoch.\n"
    write_whole(out / FEW, (head + yaml.safe_dump(blend, sort_keys=False)).encode())
    lines = [json.dumps({"prompt": caption}, ensure_ascii=False) for caption in chosen.captions]
    write_whole(out / PROMPTS, "".join(f"{line}\n" for line in lines).encode())


def _sample_words(out: Path, chosen: Chosen) -> list[object]:
    """Return the options that sample a video for each chosen caption."""
    height, width = chosen.size
    words = ["--checkpoint", out / "train", "--prompts", out / PROMPTS, "--out", out / "samples"]
    return [
        *words, "--size", f"{height}x{width}", "--frames", chosen.frames, "--steps", SAMPLE_STEPS, "--guidance", 1
    ]  # fmt: skip


def _run(module: ModuleType, command: str, *words: object) -> None:
    """Print a command as a person would type it, and run it; its results go to stderr."""
    stderr().print(f"$ {hint(command, *words)}", style="bold", soft_wrap=True)
    parser = Parser()
    module.add_arguments(parser)
    add_global(parser, default=False)
    with redirect_stdout(sys.stderr):
        module.run(parser.parse_args([str(word) for word in words]))


def _compare_learned(out: Path, dataset: Dataset, chosen: Chosen) -> list[LearnedClip]:
    """Compare each sampled video with the clip of its prompt."""
    from reelweave.pipelines.evaluation.videos import read_video, video_set

    learned_clips = []
    for path, row, prompt in zip(video_set(out / "samples").paths, chosen.rows, chosen.captions, strict=True):
        comparison = chosen.first_frames.shown(read_video(path)[0], row)
        psnrs = (round(comparison.psnr_db, 2), round(comparison.unlearned_db, 2))
        learned_clips.append(LearnedClip(dataset.row(row)["key"], prompt, *psnrs, comparison.is_shown))
    return learned_clips


def _write_configs(out: Path, buckets: "ReportConfig", training: "TrainRunConfig") -> None:
    """Write the configurations of the report and of training, with a comment behind every key."""
    for name, command, config in (("buckets", "report DATASET", buckets), ("train", "train", training)):
        head = [f"Configuration of `reelweave {command} --config {out / name}.yaml`, as the demo used it."]
        write_whole(out / f"{name}.yaml", commented_yaml(config, head).encode())


def _render(folder: Path) -> Path:
    from reelweave.pipelines.footage import make_footage

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
    options: argparse.Namespace,
    videos: Path,
    dataset: Dataset,
    report: str,
    result: "TrainResult",
    learned: Sequence[LearnedClip],
) -> None:
    from reelweave.pipelines.commands.train.train import loss_change

    totals = dataset.manifest.totals
    folder, out = options.out / "dataset", options.out
    shards = pluralize(len(dataset.manifest.shards), "shard")
    rows = [
        ("raw footage", pluralize(totals.sources, "file"), str(videos)),
        ("dataset", f"{pluralize(totals.samples, 'clip')} in {shards}, verified", str(folder)),
        ("report", "open it in a browser", report),
        ("training", f"{result.steps} steps, {loss_change(result)}", str(out / "train")),
        ("its page", "open it in a browser", str(run_page(out).absolute())),
        *([("sampled videos", _learned_sentence(learned), str(out / "samples"))] if learned else []),
    ]  # fmt: skip
    console = stdout()
    console.print(table("made", ["what", "how much", "where"], rows))


def _learned_sentence(learned: Sequence[LearnedClip]) -> str:
    """Return how many videos show the clip of their prompt, and how well."""
    from reelweave.pipelines.evaluation.shown import MARGIN_DB

    gained = ", ".join(f"{clip.psnr_db - clip.unlearned_db:+.1f}" for clip in learned)
    summary = f"{sum(clip.shown for clip in learned)} of {len(learned)} show their clip"
    return f"{summary}: {gained} dB over any answer without learning ({MARGIN_DB:g} wanted)"
