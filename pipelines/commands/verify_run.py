"""What `reelweave verify` says of a run's checkpoints."""

import argparse

from loader.errors import UsageError
from loader.storage import StorageConfig
from pipelines.terminal.console import plain, print_json, stderr, stdout


def run(options: argparse.Namespace, config: StorageConfig) -> int | None:
    """Verify every checkpoint of a run, or the one that is named; None where there is none.

    Raises:
        UsageError: a signature is asked for, which checkpoints have not.
    """
    from train.checkpoint.folder import all_of
    from train.checkpoint.verify import verify

    storage, folders = all_of(options.dataset, config)
    if not folders:
        return None
    if options.key or options.sign:
        raise UsageError("--key and --sign are of datasets; checkpoints are not signed")
    with stderr().status("reading") as status:
        found = [
            verify(storage, folder, lambda path: status.update(plain(f"reading {path}")))
            for folder in folders
        ]
    good = [one.folder for one in found if not one.problems]
    if options.json:
        checkpoints = [one._asdict() for one in found]
        print_json(
            {
                "ok": len(good) == len(found),
                "newest_good": good[-1] if good else None,
                "checkpoints": checkpoints,
            }
        )
        return 0 if len(good) == len(found) else 1
    out = stdout()
    for one in found:
        for problem in one.problems:
            out.print(problem, style="red", markup=False, soft_wrap=True)
        if not one.problems:
            how = (
                "is whole"
                if one.checked
                else "has no checksums, being older than they are: its form is whole"
            )
            out.print(
                f"{storage.uri(one.folder)} {how}: {one.bytes / 1e6:.1f} MB", markup=False, soft_wrap=True
            )
    if len(good) < len(found):
        newest = f"the newest good one is {storage.uri(good[-1])}" if good else "none is good"
        out.print(f"{len(found) - len(good)} of {len(found)} checkpoints are damaged; {newest}", markup=False)
        return 1
    return 0
