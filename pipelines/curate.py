"""Turn raw videos into a dataset of clips.

INPUT is a file, a folder, an s3:// prefix, or a list (.txt, .csv, .jsonl, .parquet) of paths. The same command
finishes a run that was interrupted; a finished dataset is never changed.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import TaskID

from loader.dataset import Dataset, stage_totals
from loader.storage import open_storage
from pipelines.config import resolve
from pipelines.console import print_json, progress_bars, stdout, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from curate.run import Progress

MAX_FAILED = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="raw videos")
    parser.add_argument(
        "--out", required=True, metavar="URI", help="folder or s3:// prefix of the new dataset"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")


def run(options: argparse.Namespace) -> int:
    """Curates, writes the report and prints the accounting."""
    from curate.config import CurateConfig
    from curate.run import curate
    from pipelines.report import REPORT, default_config, write_report

    config = resolve(CurateConfig, options.config, options.set)
    with curation_progress() as progress:
        outcome = curate(options.inputs, options.out, config, progress)
    dataset = Dataset(open_storage(options.out, config.storage))
    report = dataset.storage.uri(REPORT)
    if not outcome.already_there or dataset.storage.stat(REPORT) is None:
        write_report(dataset, default_config(config.storage))
    if options.json:
        print_json({**summary(dataset), "already_there": outcome.already_there, "report": report})
        return 0
    if outcome.already_there:
        stdout().print(f"{options.out} was already complete; nothing changed", markup=False, soft_wrap=True)
    print_accounting(dataset)
    stdout().print(f"report: {report}", markup=False, soft_wrap=True)
    return 0


@contextmanager
def curation_progress() -> "Iterator[Callable[[Progress], None]]":
    """Progress bars for a curation: sources cut, then shards written."""
    names = {"cut": "probe, split, cut", "shard": "write shards"}
    with progress_bars() as bars:
        tasks: dict[str, TaskID] = {}

        def show(progress: "Progress") -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(names[progress.phase], count="", note="")
            bars.update(
                tasks[progress.phase],
                completed=progress.done_bytes,
                total=progress.total_bytes,
                count=f"{progress.done}/{progress.total}",
                note=progress.current.rsplit("/", 1)[-1],
            )

        yield show


def summary(dataset: Dataset) -> dict[str, object]:
    """The dataset in numbers, for ``--json``."""
    return {
        "dataset": dataset.storage.root,
        **dataset.manifest.totals.model_dump(),
        "shards": len(dataset.manifest.shards),
        "stages": [asdict(total) for total in stage_totals(dataset.accounting)],
    }


def print_accounting(dataset: Dataset) -> None:
    """Every input's fate: spans per state, then what failed, with its reason."""
    totals = dataset.manifest.totals
    out = stdout()
    out.print(
        table(
            f"{totals.sources} sources -> {totals.samples} clips, {totals.duration_s:.1f} s, "
            f"{totals.clip_bytes / 1e6:.1f} MB",
            ["state", "stage", "rows", "seconds"],
            [
                (total.state, total.stage, total.rows, round(total.seconds, 1))
                for total in stage_totals(dataset.accounting)
            ],
        )
    )
    failed = [row for row in dataset.accounting.to_pylist() if row["state"] == "failed"]
    if failed:
        rows = [
            (row["source"], "" if row["start_s"] is None else f"{row['start_s']:.2f}", row["reason"])
            for row in failed[:MAX_FAILED]
        ]
        out.print(table("failed", ["source", "from s", "reason"], rows))
    if len(failed) > MAX_FAILED:
        out.print(f"{len(failed) - MAX_FAILED} more failed; all are in accounting.parquet and in the report")
