"""Page of several datasets side by side, for `reelweave report`."""

import argparse

from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.commands.look.report_run import check_own
from reelweave.pipelines.report.buckets import report_config
from reelweave.pipelines.terminal.console import print_json, stdout, table


def report_datasets(options: argparse.Namespace) -> int:
    """Print what several datasets have in common and what not; with ``--out`` write it as a page."""
    from reelweave.pipelines.report.compared import compared_page, differing, summary
    from reelweave.pipelines.report.numbers.compared import compared_numbers
    from reelweave.pipelines.report.web.files import publish

    if options.serve or options.samples is not None or options.memory_gib is not None:
        raise UsageError(
            "--serve, --samples and --memory-gib are of one dataset or of runs, not of several datasets"
        )
    # The numbers of all, and with --out the page.
    storage = report_config(options.dataset, options.config, options.set).storage
    figures = compared_numbers(
        [open_dataset(folder, storage) for folder in (options.dataset, *options.others)]
    )
    where = None
    if options.out is not None:
        check_own(options.out)
        target = open_storage(str(options.out.absolute()), StorageConfig())
        where = publish(target, "", compared_page(figures), {})
    if options.json:
        print_json({**figures, "report": where})
        return 0
    names = [dataset["name"] for dataset in figures["datasets"]]
    out = stdout()
    out.print(table("datasets", ["", *names], [(name, *values) for name, values in summary(figures)]))
    rows = differing(figures)
    out.print(table("what differs", ["key", *names], rows) if rows else "their configurations are the same")
    where = where or "add --out FOLDER for the page; it names keys, so it does not lie in a dataset"
    out.print(f"report: {where}", markup=False, soft_wrap=True)
    return 0
