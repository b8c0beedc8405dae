"""Remove a source or samples from shards, tables, ledger and report, and record that in the manifest.

Only shards that hold them are rewritten. A later `reelweave curate` leaves them out, too. Over tars of others nothing
is rewritten: a new revision of the index leaves the samples out, and so does a later `reelweave index`.
"""

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from reelweave.loader.text import pluralize
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import print_json, stdout
from reelweave.pipelines.terminal.curation_progress import curation_progress

if TYPE_CHECKING:
    from reelweave.curate.takedown.removal import Removed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave remove`."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--source",
        action="append",
        metavar="URI",
        help="source to remove, as accounting.parquet spells it, repeatable",
    )
    what.add_argument("--key", action="append", metavar="KEY", help="sample to remove, repeatable")
    what.add_argument("--keys", metavar="FILE", help="file of keys of samples to remove, one a line")
    parser.add_argument(
        "--reason",
        default="on request",
        metavar="TEXT",
        help="reason kept in the manifest (default: on request)",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Remove it and print what was rewritten."""
    from reelweave.curate.takedown.removal import remove
    from reelweave.loader.dataset import Dataset, Removal
    from reelweave.loader.read.exclude import read_keys
    from reelweave.pipelines.commands.look.report import REPORT, write_report
    from reelweave.pipelines.report.buckets import kept_config

    # Who is named, and why.
    if not options.reason.strip():
        raise UsageError("--reason is empty; say why, it is kept in the manifest")
    today, reason = datetime.now(UTC).date().isoformat(), options.reason.strip()
    keys = options.key or []
    if options.keys is not None and not (keys := read_keys(Path(options.keys), f"--keys {options.keys}")):
        raise UsageError(f"--keys {options.keys} lists no key; give one a line")
    named = [*({"source": source} for source in options.source or ()), *({"key": key} for key in keys)]
    removals = [Removal(**name, date=today, reason=reason, samples=0) for name in named]
    # A page that shows what is gone is written anew.
    config = storage_config(options)
    storage = open_storage(options.dataset, config)
    reported = storage.stat(REPORT) is not None
    done = remove(storage, *removals)
    if reported:
        with curation_progress(run=options.dataset) as progress:
            write_report(Dataset(storage), kept_config(storage, config), progress)
    # What was rewritten, and what remains elsewhere.
    if options.json:
        print_json(
            {
                "dataset": options.dataset,
                "samples_removed": done.samples,
                "shards_rewritten": done.shards_rewritten,
                "samples_left": done.manifest.totals.samples,
                "revision": done.manifest.revision,
                "copies_removed": list(done.copies),
                "overlapping_removed": list(done.overlapping),
                "duplicates_left": list(done.left),
                "older_versions_removed": done.clean,
                "unknown_keys": list(done.unknown),
                "tars_keep_bytes": done.foreign,
            }
        )
        return 0
    stdout().print(
        f"removed {pluralize(done.samples, 'sample')}; {pluralize(done.shards_rewritten, 'shard')} rewritten,"
        f" {pluralize(done.manifest.totals.samples, 'sample')} left (revision {done.manifest.revision})",
        markup=False,
        soft_wrap=True,
    )
    for note in _notes(done, "source" if options.source else "key"):
        stdout().print(note, markup=False, soft_wrap=True)
    return 0


def _notes(done: "Removed", named: str) -> Iterator[str]:
    # What was asked for and is not there, or stays elsewhere.
    if done.unknown:
        some = ", ".join(done.unknown[:3]) + (", ..." if len(done.unknown) > 3 else "")
        what = pluralize(len(done.unknown), f"{named} is", f"{named}s are")
        yield f"{what} not in the dataset: {some}"
    if done.foreign:
        yield "the tars are those of others and were not changed: the bytes of these samples remain in them"
    # What went with it, and what is still here.
    if done.copies:
        what = pluralize(len(done.copies), "copy that was no sample", "copies that were no samples")
        yield f"with it went {what}: {', '.join(done.copies)}"
    if done.overlapping:
        yield (
            f"with it went {pluralize(len(done.overlapping), 'clip that shows', 'clips that show')} some of the same"
            f" seconds: {', '.join(done.overlapping)}"
        )
    if done.left:
        yield (
            f"it was a duplicate of samples that are still here: {', '.join(done.left)};"
            " take them down by --key if they must go too"
        )
    # Places that this command does not reach.
    if not done.clean:
        yield (
            "the bucket does not let its object versions be listed or removed (s3:ListBucketVersions,"
            " s3:DeleteObjectVersion): if it keeps versions, what was taken down is still among them"
        )
    yield "versions made of this dataset (reelweave latents) and caches of training nodes are places of their own"
