"""Print how far a curation is: sources done, time left, what it is at, the slowest sources.

It reads what the run writes into its dataset every few seconds, so it works from any machine that reads the dataset.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from curate.run.runners.progress import Progress
from loader.base.strict_json import parse
from loader.dataset.manifest import MANIFEST
from loader.errors import RunError
from loader.storage import Storage, open_storage
from pipelines.configuration.storage_options import add_storage_arguments, storage_config
from pipelines.terminal.console import print_json, stdout
from pipelines.terminal.curation_progress import described, duration

STATUS = ".ledger/status.json"
_MAX_BYTES = 16 << 20
_WATCH_S = 5.0
_SILENT_S = 120.0


@dataclass(frozen=True)
class Status(Progress):
    """Progress of a curation as its status file tells it.

    Attributes:
        at: when it was written; None if it does not tell.
    """

    at: AwareDatetime | None = None


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
        status, finished = read_status(storage), storage.stat(MANIFEST) is not None
        if (status, finished) != before:
            before = (status, finished)
            _print(status, finished, options)
        if not options.watch or finished:
            return 0
        time.sleep(_WATCH_S)


def read_status(storage: Storage) -> Status | None:
    """Return the status of the last curation into a dataset; None where nothing is known of one.

    Raises:
        RunError: there is neither a curation nor a dataset, or its status file is no such file.
    """
    info = storage.stat(STATUS)
    if info is None:
        if storage.stat(MANIFEST) is None:
            raise RunError(
                f"{storage.root} holds neither a dataset nor a curation that has begun: there is no {MANIFEST} and no"
                f" {STATUS} in it"
            )
        return None
    try:
        return TypeAdapter(Status).validate_python(parse(storage.read(STATUS, 0, _MAX_BYTES)))
    except (ValidationError, ValueError):
        raise RunError(
            f"{storage.uri(STATUS)} is no status of a curation; another program wrote it"
        ) from None


def _print(status: Status | None, finished: bool, options: argparse.Namespace) -> None:
    age_s = None if status is None or status.at is None else (datetime.now(UTC) - status.at).total_seconds()
    if options.json:
        told = None if status is None else {**asdict(status), "at": status.at and status.at.isoformat()}
        print_json({"dataset": options.dataset, "finished": finished, "age_s": age_s, "status": told})
        return
    out = stdout()
    if finished:
        out.print(f"{options.dataset} is finished", soft_wrap=True)
    if status is None:
        return
    if not finished:
        out.print(described(status), soft_wrap=True)
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
