"""Check every byte of a dataset: checksums, index against tars, totals; or the checkpoints of a run."""

import argparse
from pathlib import Path

from reelweave.loader.dataset import Verification, verify
from reelweave.loader.dataset.checks import signature
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.loader.text import pluralize
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import plain, print_json, stderr, stdout


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave verify`."""
    parser.add_argument(
        "dataset",
        metavar="DATASET|RUN",
        help="folder or s3:// prefix of a dataset, a run with all its checkpoints, or one checkpoint",
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="require a signature by this public key (Ed25519, PEM)"
    )
    parser.add_argument(
        "--sign",
        type=Path,
        metavar="FILE",
        help="sign the dataset, if it is whole, with this private key (Ed25519, PEM)",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Verify and print what is wrong; return 1 if anything is."""
    config = storage_config(options)
    storage = open_storage(options.dataset, config)
    if storage.stat(MANIFEST) is None and (status := _verify_run(options, config)) is not None:
        return status
    key = signature.public_key(options.key) if options.key else None
    signing_key = signature.private_key(options.sign) if options.sign else None
    signed = storage.read(MANIFEST) if signing_key else b""
    with stderr().status("reading") as status_line:
        result = verify(storage, lambda path: status_line.update(plain(f"reading {path}")), config)
    if signing_key and result.ok:
        signature.sign(storage, signed, signing_key)
    if key:
        result.problems += signature.problems(storage, key)
    _show(result, options)
    return 0 if result.ok else 1


def _show(result: Verification, options: argparse.Namespace) -> None:
    if options.json:
        print_json(
            {
                "ok": result.ok,
                "samples": result.samples,
                "bytes": result.bytes,
                "problems": result.problems,
                **({"remark": result.remark} if result.remark else {}),
            }
        )
        return
    for problem in result.problems:
        stdout().print(problem, style="red", markup=False, soft_wrap=True)
    if result.ok:
        signed = ", signed with the key" if options.key else ", signed now" if options.sign else ""
        stdout().print(
            f"{options.dataset} is whole: {pluralize(result.samples, 'sample')}, {result.bytes / 1e6:.1f} MB of"
            f" shards, index and accounting agree{signed}" + (f"; {result.remark}" if result.remark else ""),
            markup=False,
            soft_wrap=True,
        )
    else:
        stdout().print(
            f"{len(result.problems)} problem(s) in {options.dataset}", markup=False, soft_wrap=True
        )


def _verify_run(options: argparse.Namespace, config: StorageConfig) -> int | None:
    """Verify every checkpoint of a run, or the one that is named; None where there is none.

    Raises:
        UsageError: a signature is asked for, which checkpoints have not.
    """
    from reelweave.train.checkpoint.folder import all_of

    storage, folders = all_of(options.dataset, config)
    if not folders:
        return None
    if options.key or options.sign:
        raise UsageError("--key and --sign are of datasets; checkpoints are not signed")
    from reelweave.train.checkpoint.verify import verify  # and PyTorch, where there is a checkpoint

    with stderr().status("reading") as status:
        verified = [
            verify(storage, folder, lambda path: status.update(plain(f"reading {path}")))
            for folder in folders
        ]
    good = [checkpoint.folder for checkpoint in verified if not checkpoint.problems]
    if options.json:
        checkpoints = [checkpoint._asdict() for checkpoint in verified]
        print_json(
            {
                "ok": len(good) == len(verified),
                "newest_good": good[-1] if good else None,
                "checkpoints": checkpoints,
            }
        )
        return 0 if len(good) == len(verified) else 1
    out = stdout()
    for checked in verified:
        for problem in checked.problems:
            out.print(problem, style="red", markup=False, soft_wrap=True)
        if not checked.problems:
            how = (
                "is whole"
                if checked.checked
                else "has no checksums, being older than they are: its form is whole"
            )
            out.print(
                f"{storage.uri(checked.folder)} {how}: {checked.bytes / 1e6:.1f} MB",
                markup=False,
                soft_wrap=True,
            )
    if len(good) < len(verified):
        newest = f"the newest good one is {storage.uri(good[-1])}" if good else "none is good"
        out.print(
            f"{len(verified) - len(good)} of {len(verified)} checkpoints are damaged; {newest}",
            soft_wrap=True,
        )
        return 1
    return 0
