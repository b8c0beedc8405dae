"""Cut raw videos into a dataset of captioned clips.

INPUT is a file, a folder, an s3:// prefix, a web address, or a list (.txt, .csv, .tsv, .json, .jsonl, .parquet) of
these. The same command finishes an interrupted run; a finished dataset changes only with --update. OUT/curate.yaml
keeps the resolved configuration.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.dataset import Dataset, StageTotal, stage_totals
from reelweave.loader.dataset.tables.accounting import TOTALLED
from reelweave.loader.errors import RunError
from reelweave.loader.settings import unread_keys
from reelweave.loader.storage import open_storage
from reelweave.loader.text import pluralize
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.kept import kept_yaml, repeated_with
from reelweave.pipelines.terminal.arguments import LIST, ListedName, add_config, add_log_format
from reelweave.pipelines.terminal.console import print_json, stderr, stdout, table
from reelweave.pipelines.terminal.curation_progress import curation_progress
from reelweave.pipelines.terminal.program import hint

if TYPE_CHECKING:
    from reelweave.curate.config import CurateConfig

MAX_FAILED = 50
_SHOWN = ("source", "start_s", "reason")
KEPT = "curate.yaml"
"""Path in a dataset of the configuration it was last made with; none of its checksums covers it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave curate`."""
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="raw videos: file, folder, prefix, address or list"
    )
    parser.add_argument("--out", required=True, metavar="URI", help="folder or s3:// prefix of the dataset")
    add_config(parser)
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE",
        action=ListedName,
        listing=_list_recipes,
        help=f"published filters, below --config and --set: a recipe's name, or a file of your own; {LIST}: print all",
    )
    add_log_format(parser)
    parser.add_argument(
        "--update",
        action="store_true",
        help="change the finished dataset at --out (other configuration, more sources), reusing what stays valid",
    )
    parser.add_argument(
        "--retry-failed",
        action="store_true",
        help="retry what failed, and nothing else that is done",
    )
    parser.add_argument(
        "--redo-older",
        action="store_true",
        help="do again what an earlier version of the program did otherwise; without it that stays, and is counted",
    )
    parser.add_argument(
        "--forecast",
        action="store_true",
        help="estimate clips, hours, GB and price from a sample, and publish nothing; with --update: what it would do",
    )
    parser.add_argument(
        "--rates",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="sample size and prices of --forecast, such as core_hour_price=0.03",
    )


def _list_recipes() -> str:
    from reelweave.pipelines.configuration.recipes.files import list_recipes

    return list_recipes()


def run(options: argparse.Namespace) -> int:
    """Curate, write the report and print the accounting."""
    from reelweave.curate.run.curate import curate
    from reelweave.pipelines.commands.look.report import REPORT, write_report
    from reelweave.pipelines.configuration.recipes.given import (
        describe_recipe,
        recipe_facts,
        resolve_curation,
    )
    from reelweave.pipelines.report.buckets import kept_config

    config = resolve_curation(options.recipe, options.config, options.set)
    for line in describe_recipe(config):
        stderr().print(line, markup=False, soft_wrap=True)
    sentences: list[str] = []

    def say(sentence: str) -> None:
        sentences.append(sentence)
        stderr().print(f"note: {sentence}", markup=False, soft_wrap=True)

    unread = list(unread_keys(config))
    for line in unread:
        say(line)
    if options.forecast:
        return _forecast_change(options, config) if _changes(options) else _forecast(options, config)

    with curation_progress(options.log_format, options.out) as progress:
        outcome = curate(
            options.inputs,
            options.out,
            config,
            progress,
            update=options.update,
            retry_failed=options.retry_failed,
            redo_older=options.redo_older,
            say=say,
            beside=kept_files(config, options.inputs, options.out),
        )
    for note in outcome.notes:
        if note in sentences:
            continue
        stderr().print(f"note: {note}", markup=False, soft_wrap=True)
    dataset = Dataset(open_storage(options.out, config.storage))
    notes, report = [*unread, *outcome.notes], dataset.storage.uri(REPORT)
    is_written = True
    if not outcome.already_there or dataset.storage.stat(REPORT) is None:
        try:
            with curation_progress(options.log_format, options.out) as progress:
                write_report(dataset, kept_config(dataset.storage, config.storage), progress)
        except RunError as error:  # the dataset is whole
            is_written = False
            notes.append(f"the report is not up to date: {error}; `{hint('report', options.out)}` writes it")
            stderr().print(f"note: {notes[-1]}", markup=False, soft_wrap=True)
    if options.json:
        print_json(
            {
                **summary(dataset),
                "already_there": outcome.already_there,
                "recipe": recipe_facts(config),
                "notes": notes,
                "report": report if is_written else None,
            }
        )
        return _status(dataset)
    if outcome.already_there:
        stdout().print(f"{options.out} was already complete; nothing changed", markup=False, soft_wrap=True)
    print_accounting(dataset)
    if is_written:
        stdout().print(f"report: {report}", markup=False, soft_wrap=True)
    return _status(dataset)


def kept_files(config: "CurateConfig", inputs: "Sequence[str]", out: str) -> dict[str, bytes]:
    """Return the resolved configuration as a file of the dataset, below the command that repeats it."""
    command = ["curate", *inputs, "--out", out, *repeated_with(out, KEPT, config.storage)]
    return {KEPT: kept_yaml(config, command).encode()}


def _status(dataset: Dataset) -> int:
    """Return the exit status of a finished curation.

    Raises:
        RunError: nothing was kept and something failed; names the most frequent reason.
    """
    rows = dataset.manifest.totals.accounting
    if dataset.manifest.totals.samples or not rows["failed"]:
        return 0
    reasons: Counter[tuple[str, str]] = Counter()
    for part in _failed_rows(dataset, ("stage", "reason")):
        reasons.update(zip(*(column.to_pylist() for column in part.columns), strict=True))
    [((stage, reason), count)] = reasons.most_common(1)
    remedy = (
        "leave that threshold out, with --update"
        if stage.startswith("filter.")
        else "mend that, then run the same command with --retry-failed"
    )
    raise RunError(
        f"{dataset.storage.root} holds no sample: {rows['failed']} of {sum(rows.values())} sources"
        f" and clips failed, {count} of them at {stage} ({reason}); {remedy}"
    )


def _failed_rows(dataset: Dataset, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of the failed rows of the accounting, a part at a time."""
    for part in dataset.table_parts("accounting", ("state", *columns)):
        yield part.filter(pc.equal(part.column("state"), "failed")).select(columns)


def _changes(options: argparse.Namespace) -> bool:
    return bool(options.update or options.retry_failed or options.redo_older)


def _forecast_change(options: argparse.Namespace, config: "CurateConfig") -> int:
    """Print what a change of a finished dataset would do; a forecast from a sample where there is none."""
    from reelweave.curate.run.outlook.forecast import ForecastConfig
    from reelweave.curate.run.sample_run import forecast_update

    rates = resolve(ForecastConfig, None, options.rates, "--rates")
    # What would be done, and what the same cost before.
    work = forecast_update(
        options.inputs,
        options.out,
        config,
        retry_failed=options.retry_failed,
        redo_older=options.redo_older,
    )
    if work is None:
        return _forecast(options, config)
    prices = [
        None if stage_work.core_s is None else stage_work.core_s / 3600 * rates.core_hour_price
        for stage_work in work
    ]
    if options.json:
        rows = [
            {**asdict(stage_work), "price": price} for stage_work, price in zip(work, prices, strict=True)
        ]
        print_json({"work": rows, "currency": rates.currency})
        return 0
    shown = [
        (
            stage_work.what,
            "done" if stage_work.now else "left",
            stage_work.sources,
            stage_work.clips,
            round(stage_work.clip_s / 3600, 3),
            "" if stage_work.core_s is None else round(stage_work.core_s / 3600, 4),
            "" if price is None else round(price, 4),
        )
        for stage_work, price in zip(work, prices, strict=True)
    ]
    columns = ["work", "by this", "sources", "clips", "hours of clips", "core-hours before", rates.currency]
    stdout().print(table(f"what the update of {options.out} would do", columns, shown))
    for row_work in work:
        stdout().print(row_work.said, markup=False, soft_wrap=True)
    return 0


def _forecast(options: argparse.Namespace, config: "CurateConfig") -> int:
    from reelweave.curate.run.outlook.forecast import Estimate, ForecastConfig
    from reelweave.curate.run.sample_run import forecast_curation

    rates = resolve(ForecastConfig, None, options.rates, "--rates")
    with curation_progress(options.log_format, options.out) as progress:
        forecast = forecast_curation(options.inputs, options.out, config, rates, progress)
    if options.json:
        print_json(asdict(forecast))
        return 0
    # Estimates with their bounds, in the order of the work.
    units = {
        "clips": "clips",
        "clip_gb": "GB of clips",
        "clip_hours": "hours of clips",
        "clip_mbps": "Mbit/s of clips",
        "core_hours": "core-hours",
        "gpu_hours": "GPU-hours",
        "price": f"{forecast.currency} for computing",
        "price_a_month": f"{forecast.currency} a month for keeping the clips",
    }
    rows = []
    for name, unit in units.items():
        estimate: Estimate = getattr(forecast, name)
        rows.append((unit, float(estimate.value), float(estimate.low), float(estimate.high)))
    title = (
        f"forecast for {pluralize(forecast.sources, 'source')}, {forecast.source_bytes / 1e9:.3g} GB,"
        f" from a sample of {forecast.sampled}"
    )
    stdout().print(table(title, ["", "expected", "at least", "at most"], rows))
    return 0


def summary(dataset: Dataset) -> dict[str, object]:
    """Return the dataset's totals for ``--json``."""
    return {
        "dataset": dataset.storage.root,
        **dataset.manifest.totals.model_dump(),
        "shards": len(dataset.manifest.shards),
        "stages": [asdict(total) for total in _totals(dataset)],
    }


def print_accounting(dataset: Dataset) -> None:
    """Print spans per state, then failures with their reasons."""
    totals = dataset.manifest.totals
    out = stdout()
    out.print(
        table(
            f"{pluralize(totals.sources, 'source')} -> {pluralize(totals.samples, 'clip')}, {totals.duration_s:.1f} s, "
            f"{totals.clip_bytes / 1e6:.1f} MB",
            ["state", "stage", "rows", "seconds"],
            [(total.state, total.stage, total.rows, round(total.seconds, 1)) for total in _totals(dataset)],
        )
    )
    failed = totals.accounting["failed"]
    if failed:
        failed_rows = (row for some in _failed_rows(dataset, _SHOWN) for row in some.to_pylist())
        rows = [
            (row["source"], "" if row["start_s"] is None else f"{row['start_s']:.2f}", row["reason"])
            for row in itertools.islice(failed_rows, MAX_FAILED)
        ]
        out.print(table("failed", ["source", "from s", "reason"], rows))
    if failed > MAX_FAILED:
        out.print(f"{failed - MAX_FAILED} more failed; all are in accounting.parquet and in the report")


def _totals(dataset: Dataset) -> list[StageTotal]:
    return stage_totals(dataset.table_parts("accounting", TOTALLED))
