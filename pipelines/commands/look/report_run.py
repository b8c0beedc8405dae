"""Pages of training runs, for `reelweave report`."""

import argparse
from pathlib import Path
from typing import Literal

from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.commands.look.report_serve import serve
from reelweave.pipelines.terminal.console import print_json, stdout, table

PAGE, COMPARED = "report", "compared"
_OWN = ("index.html", "assets/report.js")
"""Files by which a folder is recognised as that of an earlier page."""


def kind_of(uri: str) -> Literal["dataset", "run", "nothing"]:
    """Return what a folder holds; what is no local folder is taken for a dataset."""
    from reelweave.pipelines.report.run.numbers import is_run

    folder = Path(uri)
    if not folder.is_dir() or any((folder / name).exists() for name in (MANIFEST, ".ledger")):
        return "dataset"
    return "run" if is_run(folder) else "nothing"


def report_runs(options: argparse.Namespace) -> int:
    """Write the page of one or several runs and print what calls for attention, or serve it."""
    from reelweave.pipelines.report.run.numbers import is_run, read_runs
    from reelweave.pipelines.report.run.page import addresses_from, run_page, summary
    from reelweave.pipelines.report.web.files import publish

    folders = [Path(name) for name in (options.dataset, *options.others)]
    # Folders and options that do not go together.
    for folder in folders:
        if not is_run(folder):
            raise UsageError(
                f"{folder} is no training run: it has neither metrics.jsonl nor train.yaml; several folders"
                " are compared only where all are runs, or all datasets"
            )
    if options.config or options.set:
        raise UsageError("--config and --set choose the buckets of a dataset; the report of a run has none")
    if options.serve:
        from reelweave.pipelines.report.serve.run_pages import RunPages

        if options.out:
            raise UsageError("--out is for the page that is written; --serve writes none")
        serve(RunPages(folders, options.memory_gib), options, {"runs": [str(folder) for folder in folders]})
        return 0
    # The page, and the same numbers in the terminal.
    where = options.out or folders[0] / (PAGE if len(folders) == 1 else COMPARED)
    check_own(where)
    figures = read_runs(folders, options.memory_gib)
    page, beside = run_page(figures, addresses_from(where, folders))
    uri = publish(open_storage(str(where.absolute()), StorageConfig()), "", page, beside)
    if options.json:
        print_json({**figures.to_json(), "report": uri})
        return 0
    names = [run.name for run in figures.runs]
    stdout().print(
        table("training runs", ["", *names], [(name, *values) for name, values in summary(figures.runs)])
    )
    for run in figures.runs:
        for warning in run.warnings:
            stdout().print(f"{run.name}: {warning}", markup=False, soft_wrap=True)
    stdout().print(f"report: {uri}", markup=False, soft_wrap=True)
    return 0


def check_own(folder: Path) -> None:
    """Refuse a folder with anything but an earlier page, because a page removes what is not its own."""
    if folder.is_dir() and any(folder.iterdir()) and not all((folder / name).is_file() for name in _OWN):
        raise UsageError(
            f"{folder} holds other files, which a page would remove; give another folder with --out"
        )
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; give a folder with --out")
