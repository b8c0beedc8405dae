"""Make existing WebDataset tars a dataset, without changing them.

Each tar is read once. The same command resumes an interrupted run, and later reads only new tars.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import UsageError
from reelweave.pipelines.commands.data.curate import print_accounting, summary
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import print_json, progress_bars, stderr

if TYPE_CHECKING:
    from collections.abc import Callable

    from reelweave.curate.foreign.crew import TarProgress

MAX_NOTES = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave index`."""
    parser.add_argument("uri", metavar="URI", help="folder or s3:// prefix of the tars")
    parser.add_argument(
        "--shards",
        metavar="GLOB",
        help="read only tars whose path below URI matches (* stands for any characters)",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of processes (default: one per processor)"
    )
    parser.add_argument("--out", metavar="URI", help="place of the index (default: beside the tars)")
    parser.add_argument(
        "--fields",
        metavar="CHOICE",
        help="fields of .json to keep: all, none, or NAME=json.FIELD separated by commas, with or without all"
        " (default: those of the index that is there, else all)",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Index the tars and print the accounting."""
    from reelweave.curate.foreign.run import index_tars

    if options.workers is not None and options.workers < 1:
        raise UsageError(f"--workers {options.workers} works on nothing; give 1 or more")
    config = storage_config(options)
    with _progress() as progress:
        done = index_tars(
            options.uri, options.out, options.shards, options.workers, config, progress, options.fields
        )
    for note in done.notes[:MAX_NOTES]:
        stderr().print(f"note: {note}", markup=False, soft_wrap=True)
    if len(done.notes) > MAX_NOTES:
        stderr().print(f"note: and {len(done.notes) - MAX_NOTES} more; see accounting.parquet")
    dataset = open_dataset(options.out or options.uri, config)
    if options.json:
        print_json({**summary(dataset), "tars_read": done.tars_read, "notes": list(done.notes)})
        return 0
    print_accounting(dataset)
    return 0


@contextmanager
def _progress() -> "Iterator[Callable[[TarProgress], None]]":
    """Show a progress bar over the bytes of the tars."""
    with progress_bars() as bars:
        task = bars.add_task("tars", count="", note="")

        def show(progress: "TarProgress") -> None:
            bars.update(
                task,
                completed=progress.done_bytes,
                total=progress.total_bytes,
                count=f"{progress.done}/{progress.total}",
                note=progress.current.rsplit("/", 1)[-1],
            )

        yield show
