"""Prove a dataset whole: checksums, index against tars, accounting that adds up. Or the checkpoints of a run."""

import argparse
import json
from pathlib import Path

from loader.dataset import Verification, verify
from loader.dataset.checks import signature
from loader.dataset.manifest import MANIFEST
from loader.storage import StorageConfig, open_storage
from pipelines.commands import verify_run
from pipelines.terminal.console import plain, print_json, stderr, stdout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "dataset",
        metavar="DATASET|RUN",
        help="folder or s3:// prefix: a dataset, a run with all its checkpoints, or one checkpoint",
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="the dataset must be signed; public key, Ed25519 in PEM"
    )
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="FILE",
        help="sign the dataset if it is whole; private key, Ed25519 in PEM",
    )
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
    from pipelines.configuration.config import resolve

    overrides = [f"endpoint_url={options.endpoint_url}"] if options.endpoint_url else []
    if options.allow:
        overrides.append(f"allowed_prefixes={json.dumps(options.allow)}")
    return resolve(StorageConfig, None, overrides)


def run(options: argparse.Namespace) -> int:
    """Verifies and prints what is wrong; 1 when anything is."""
    config = storage_config(options)
    storage = open_storage(options.dataset, config)
    if storage.stat(MANIFEST) is None and (status := verify_run.run(options, config)) is not None:
        return status
    key = signature.public_key(options.key) if options.key else None
    own = signature.private_key(options.sign) if options.sign else None
    signed = storage.read(MANIFEST) if own else b""
    with stderr().status("reading") as status_line:
        result = verify(storage, lambda path: status_line.update(plain(f"reading {path}")), config)
    if own and result.ok:
        signature.sign(storage, signed, own)
    if key:
        result.problems += signature.problems(storage, key)
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
        signed = ", signed with the key" if options.key else ", signed now" if options.sign else ""
        stdout().print(
            f"{options.dataset} is whole: {result.samples} samples, {result.bytes / 1e6:.1f} MB of shards, "
            f"index and accounting agree{signed}",
            markup=False,
            soft_wrap=True,
        )
    else:
        stdout().print(
            f"{len(result.problems)} problem(s) in {options.dataset}", markup=False, soft_wrap=True
        )
