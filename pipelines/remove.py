"""Take a source or one sample down: out of shards, tables and ledger, and recorded in the manifest.

Only the shards that hold something of it are written again. A later `reelweave curate` leaves it out too.
"""

import argparse
from datetime import UTC, datetime

from loader.errors import UsageError
from loader.storage import open_storage
from pipelines.console import print_json, stdout
from pipelines.verify import add_storage_arguments, storage_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--source", metavar="URI", help="a source, as accounting.parquet spells it")
    what.add_argument("--key", metavar="KEY", help="one sample")
    parser.add_argument("--reason", default="on request", metavar="TEXT", help="kept in the manifest")
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Takes it down and says what that cost."""
    from curate.removal import remove
    from loader.dataset import Removal

    if not options.reason.strip():
        raise UsageError("--reason is empty; say why, it is kept in the manifest")
    removal = Removal(
        source=options.source,
        key=options.key,
        date=datetime.now(UTC).date().isoformat(),
        reason=options.reason.strip(),
        samples=0,
    )
    done = remove(open_storage(options.dataset, storage_config(options)), removal)
    if options.json:
        print_json(
            {
                "dataset": options.dataset,
                "samples_removed": done.samples,
                "shards_rewritten": done.shards_rewritten,
                "samples_left": done.manifest.totals.samples,
                "revision": done.manifest.revision,
            }
        )
        return 0
    stdout().print(
        f"removed {done.samples} samples; {done.shards_rewritten} shards rewritten,"
        f" {done.manifest.totals.samples} samples left (revision {done.manifest.revision})",
        markup=False,
        soft_wrap=True,
    )
    return 0
