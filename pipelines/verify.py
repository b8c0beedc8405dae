"""Prove a dataset whole: checksums, index against tars, accounting that adds up."""

import argparse
import json

from loader.dataset import Verification, verify
from loader.storage import StorageConfig, open_storage
from pipelines.console import plain, print_json, stderr, stdout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix")
    add_storage_arguments(parser)


def add_storage_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of commands that open a dataset without a configuration file."""
    parser.add_argument("--endpoint-url", metavar="URL", help="S3 endpoint other than AWS (MinIO, Ceph)")
    parser.add_argument(
        "--allow",
        metavar="PREFIX",
        action="append",
        default=[],
        help="let a dataset on S3 or the web name tars below PREFIX (storage.allowed_prefixes); may be repeated",
    )


def storage_config(options: argparse.Namespace) -> StorageConfig:
    """The storage settings those options mean."""
    from pipelines.config import resolve

    overrides = [f"endpoint_url={options.endpoint_url}"] if options.endpoint_url else []
    if options.allow:
        overrides.append(f"allowed_prefixes={json.dumps(options.allow)}")
    return resolve(StorageConfig, None, overrides)


def run(options: argparse.Namespace) -> int:
    """Verifies and prints what is wrong; 1 when anything is."""
    config = storage_config(options)
    storage = open_storage(options.dataset, config)
    with stderr().status("reading") as status:
        result = verify(storage, lambda path: status.update(plain(f"reading {path}")), config)
    _show(result, options)
    return 0 if result.ok else 1


def _show(result: Verification, options: argparse.Namespace) -> None:
    if options.json:
        print_json(
            {"ok": result.ok, "samples": result.samples, "bytes": result.bytes, "problems": result.problems}
        )
        return
    for problem in result.problems:
        stdout().print(problem, style="red", markup=False, soft_wrap=True)
    if result.ok:
        stdout().print(
            f"{options.dataset} is whole: {result.samples} samples, {result.bytes / 1e6:.1f} MB of shards, "
            "index and accounting agree",
            markup=False,
            soft_wrap=True,
        )
    else:
        stdout().print(
            f"{len(result.problems)} problem(s) in {options.dataset}", markup=False, soft_wrap=True
        )
