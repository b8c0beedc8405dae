"""Print how far a curation is: sources done, time left, what it is at, the slowest sources.

It reads what the run writes into its dataset every few seconds, so it works from any machine that reads the dataset.
"""

import argparse
import time
from dataclasses import asdict
from datetime import UTC, datetime

from reelweave.loader.storage import open_storage
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.metrics.curation_status import Status, is_finished, read_status
from reelweave.pipelines.terminal.console import print_json, stdout
from reelweave.pipelines.terminal.curation_progress import describe_progress, duration

_WATCH_S = 5.0
_SILENT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave status`."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix that a curation writes to")
    parser.add_argument(
        "--watch", action="store_true", help="print again when something changes, until it is finished"
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the status; with ``--watch`` until the dataset is finished."""
    storage = open_storage(options.dataset, storage_config(options))
    before = None
    while True:
        status = read_status(storage)
        finished = is_finished(storage, status)
        if (status, finished) != before:
            before = (status, finished)
            _print(status, finished, options)
        if not options.watch or finished:
            return 0
        time.sleep(_WATCH_S)


def _print(status: Status | None, finished: bool, options: argparse.Namespace) -> None:
    age_s = None if status is None or status.at is None else (datetime.now(UTC) - status.at).total_seconds()
    if options.json:
        shown = None if status is None else {**asdict(status), "at": status.at and status.at.isoformat()}
        print_json({"dataset": options.dataset, "finished": finished, "age_s": age_s, "status": shown})
        return
    out = stdout()
    if finished:
        out.print(f"{options.dataset} is finished", soft_wrap=True)
    if status is None:
        return
    if not finished:
        out.print(describe_progress(status), soft_wrap=True)
        if status.states:
            out.print("so far: " + ", ".join(f"{count:,} {state}" for state, count in status.states.items()))
        if age_s is not None and age_s > _SILENT_S:
            out.print(
                f"nothing was written for {duration(age_s)}: the run has ended, or works on long sources;"
                " the same command goes on where it stopped",
                soft_wrap=True,
            )
    for source, seconds in status.slowest[:3]:
        out.print(f"slow: {source} took {duration(seconds)}", soft_wrap=True)
