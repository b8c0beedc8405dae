"""Print how far a curation is: sources done, time left, what it is at, the slowest sources.

It reads what the run writes into its dataset every few seconds, so it works from any machine that reads the dataset.
"""

import argparse
import time
from dataclasses import asdict
from datetime import UTC, datetime

from reelweave.loader.storage import LeaseWatch, Writer, open_storage
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
        "--watch",
        action="store_true",
        help="print again when something changes, until it is finished (status 0) or nobody writes there (1)",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the status; with ``--watch`` until the dataset is finished, or nobody writes to it any more.

    Returns:
        1 where ``--watch`` saw the end of a run that did not finish the dataset, else 0.
    """
    storage = open_storage(options.dataset, storage_config(options))
    leases = LeaseWatch(storage)
    before = None
    while True:
        # The lease first: a run that ends between the two has finished its status.
        writer = leases.look()
        status = read_status(storage)
        finished = is_finished(storage, status)
        if (status, finished, writer.is_there is False) != before:
            before = (status, finished, writer.is_there is False)
            _print(status, finished, writer, options)
        if not options.watch or finished:
            return 0
        if writer.is_there is False:
            return 1
        time.sleep(_WATCH_S)


def _print(status: Status | None, finished: bool, writer: Writer, options: argparse.Namespace) -> None:
    age_s = None if status is None or status.at is None else (datetime.now(UTC) - status.at).total_seconds()
    if options.json:
        shown = None if status is None else {**asdict(status), "at": status.at and status.at.isoformat()}
        print_json(
            {
                "dataset": options.dataset,
                "finished": finished,
                "written": writer.is_there,
                "age_s": age_s,
                "status": shown,
            }
        )
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
        if sentence := _describe_silence(status, age_s, writer):
            out.print(sentence, soft_wrap=True)
    for source, seconds in status.slowest[:3]:
        out.print(f"slow: {source} took {duration(seconds)}", soft_wrap=True)


def _describe_silence(status: Status, age_s: float | None, writer: Writer) -> str:
    """Return in words that a run has ended, or may have; "" while it writes."""
    goes_on = "the same command goes on where it stopped"
    if writer.is_there is False:
        last = ""
        if status.at is not None and age_s is not None:
            last = (
                f", its last record is of {status.at.astimezone():%Y-%m-%d %H:%M:%S} ({duration(age_s)} ago)"
            )
        return f"no process writes here: the run was stopped{last}; {goes_on}"
    if age_s is None or age_s <= _SILENT_S:
        return ""
    if writer.is_there or writer.holder is None:
        return f"nothing was written for {duration(age_s)}: the run works on long sources or loads models"
    # A lease that ends by itself is watched, one that a file server keeps is not.
    advice = (
        f"--watch tells within {duration(writer.holder.lasts_s)}" if writer.holder.lasts_s else "look there"
    )
    return (
        f"nothing was written for {duration(age_s)}: whether {writer.holder} still runs cannot be seen at once;"
        f" {advice}; if it has ended, {goes_on}"
    )
