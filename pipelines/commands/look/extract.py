"""Write a clip's file out of its shard, checked against its checksum; rejected clips too, while the ledger has them."""

import argparse
import json
import re
from pathlib import Path

from reelweave.loader.base.printable import printable_json
from reelweave.loader.dataset import Dataset, Row, open_dataset
from reelweave.loader.dataset.schema import PLACEMENT
from reelweave.loader.errors import RunError, UsageError
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import print_json, stdout
from reelweave.pipelines.terminal.files import output_target, write_whole
from reelweave.pipelines.terminal.program import hint

_UNSAFE = re.compile(r"[^\w-]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave extract`."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix")
    parser.add_argument("key", metavar="KEY", help="key of a clip, or the beginning of one")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: KEY.mp4 in this folder)"
    )
    parser.add_argument(
        "--sidecars",
        action="store_true",
        help="also write the caption (.txt) and the metadata (.json) beside it",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write the clip and print where it is."""
    from reelweave.pipelines.report.clips.lookup import find_rows
    from reelweave.pipelines.report.clips.media import locate_clip

    if not options.key:
        raise UsageError("give the KEY of a clip, or its beginning")
    dataset = open_dataset(options.dataset, storage_config(options))
    row = find_rows(dataset, options.key)[0]
    key = row["key"]
    if key is None or not key.startswith(options.key):
        raise UsageError(
            f"{options.key!r} is a source; its clips are listed by {hint('show', options.dataset, options.key)}"
        )
    # All files are checked before one is written.
    clip = locate_clip(dataset, key)
    if clip is None:
        raise RunError(_reason_gone(dataset, row))
    out = options.out or Path(f"{_UNSAFE.sub('_', key)[:200]}.{clip.suffix}")
    contents = {out: clip.read()}
    if options.sidecars:
        caption, metadata = _sidecars(dataset, row)
        contents |= {out.with_suffix(".txt"): caption, out.with_suffix(".json"): metadata}
    for path, data in contents.items():
        _check_new(path, data)
    written = [_write(path, data) for path, data in contents.items()]
    if options.json:
        print_json({"key": key, "state": row["state"], "files": written, "bytes": clip.size})
        return 0
    rejected = "" if row["state"] == "kept" else f" ({row['state']}: {row['reason']})"
    for path in written:
        stdout().print(f"{path}{rejected}", markup=False, soft_wrap=True)
    return 0


def _check_new(path: Path, data: bytes) -> None:
    """Refuse to replace a file that holds anything else than what is written."""
    target = output_target(path, "--out")
    try:
        kept = not target.exists() or (target.stat().st_size == len(data) and target.read_bytes() == data)
    except OSError as error:
        raise UsageError(f"--out {path} cannot be read: {error.strerror}") from error
    if not kept:
        raise UsageError(f"--out {path} exists and holds something else; name a new file, or remove that one")


def _write(path: Path, data: bytes) -> str:
    write_whole(path, data, "--out")
    return str(path)


def _sidecars(dataset: Dataset, row: Row) -> tuple[bytes, bytes]:
    """Return caption and metadata as the sample's own members have them; of a rejected clip its row."""
    row_number = dataset.row_number(row["key"])
    values = row if row_number is None else dataset.row(row_number)
    fields = {name: value for name, value in values.items() if name not in PLACEMENT}
    text = printable_json(json.dumps(fields, indent=1, ensure_ascii=False))
    return str(fields.get("caption", "")).encode(), f"{text}\n".encode()


def _reason_gone(dataset: Dataset, row: Row) -> str:
    """Return why a clip has no file."""
    if row["state"] == "kept":
        return f"{row['key']} has no video in {dataset.storage.root}: this version holds latents in its place"
    return (
        f"{row['key']} is {row['state']} ({row['reason']}), and its file was not kept"
        " (run.keep_rejected=true keeps those of later runs)"
    )
