"""Write a dataset's page, DATASET/report/index.html, and print its buckets; or the page of training runs.

A dataset's page shows accounting, distributions, buckets and clips. Buckets are those of --config; without it those
of the dataset's last report, and at first those of a Wan-like model on 80 GB GPUs. With --world-size it shows
the policies beside each other on a cluster of that size, and what is recommended. A --workload instead of a
dataset has only these. Plans as files: `reelweave plan`. RUN/report/index.html shows how a training run goes;
several runs are shown side by side.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from reelweave.loader.blend import is_blend_file
from reelweave.loader.dataset import Dataset, open_dataset, read_manifest
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.text import pluralize
from reelweave.pipelines.commands.look import report_steps
from reelweave.pipelines.commands.look.report_datasets import report_datasets
from reelweave.pipelines.commands.look.report_run import kind_of, report_runs
from reelweave.pipelines.commands.look.report_serve import serve
from reelweave.pipelines.report.buckets import KEPT, PACKAGED, ReportConfig, keep, report_config
from reelweave.pipelines.report.sampled import keep_sampled, sampled_files
from reelweave.pipelines.report.shapes import KEPT as KEPT_SHAPES
from reelweave.pipelines.report.shapes import keep_shapes
from reelweave.pipelines.report.web.files import Files
from reelweave.pipelines.terminal.arguments import add_config
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.curation_progress import REPORTING, curation_progress
from reelweave.pipelines.terminal.program import hint

if TYPE_CHECKING:
    from reelweave.curate.run.runners.progress import Progress
    from reelweave.pipelines.report.numbers.dataset import DatasetFigures

REPORT = "report/index.html"
SERVED_CHARS = 1000
"""Characters of a caption that a served gallery shows; it searches all of them."""
NOT_READ = ("scores", "source_sha256", "sample_sha256", "caption_provenance", "attributes")
"""Columns of the index that no page shows; scores are those of ``scores.parquet``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave report`."""
    parser.add_argument(
        "dataset",
        metavar="DATASET|RUN",
        nargs="?",
        help="folder or s3:// prefix; or folder of a training run",
    )
    parser.add_argument(
        "others", metavar="DATASET|RUN", nargs="*", help="more of the same, to be shown side by side"
    )
    add_config(
        parser,
        f"YAML with buckets (default: those of the last report, at first {PACKAGED.name} of the package)",
        overrides="one key of --config",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FOLDER",
        help="videos of a model that trained on this dataset, from `reelweave sample`: the page shows them beside the"
        " clips they are nearest to",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for the page of runs (default: report in the run; of several, compared in the first), of several"
        " datasets, or of a workload",
    )
    parser.add_argument(
        "--memory-gib",
        type=float,
        metavar="GIB",
        help="memory of a GPU, by which to judge a run's peak (default: train.cascade.memory_gib, if set); with"
        " --shapes: M_mem follows from it and the measured peaks",
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="serve the report and play its clips, or follow live runs, instead of writing it, until Ctrl-C",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help="with --serve: address to listen on (default: 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, metavar="N", help="with --serve: port (default: a free one)")
    parser.add_argument(
        "--no-token",
        action="store_true",
        help="with --serve: an address without a token, for whoever reaches the port, other users of this machine too",
    )
    report_steps.add_arguments(parser.add_argument_group("steps of a cluster"))


def run(options: argparse.Namespace) -> int:
    """Write the HTML report into the dataset and print the bucket table."""
    report_steps.check(options)
    if options.workload is not None:
        report_steps.report_workload(options)
        return 0
    # What is no page of one dataset: workloads, runs, several datasets, and wrong calls.
    if options.dataset is None:
        raise UsageError("give a DATASET: a folder or an s3:// prefix")
    if is_blend_file(options.dataset):
        raise UsageError(
            f"{options.dataset} is a blend: report each of its datasets, or plan its steps:"
            f" {hint('plan', options.dataset)}"
        )
    if not options.serve and (options.host is not None or options.port is not None or options.no_token):
        raise UsageError("--host, --port and --no-token are of --serve; add it to serve the report")
    kind = kind_of(options.dataset)
    if kind == "run" or options.others:
        report_steps.refuse(options)
        runs = any(kind_of(folder) != "dataset" for folder in (options.dataset, *options.others))
        return report_runs(options) if runs else report_datasets(options)
    if options.out:
        raise UsageError(
            "--out is for the report of a training run or a workload; a dataset keeps its own page"
        )
    if kind == "nothing":
        raise RunError(
            f"{options.dataset} holds no finished dataset (manifest.json, or .ledger of an unfinished curation) and no"
            " training run (metrics.jsonl, train.yaml or train-vae.yaml)"
        )
    # Buckets from options, files and earlier reports, with budgets from measured shapes.
    config = report_config(options.dataset, options.config, report_steps.overrides(options))
    spare_memory()
    budgets, shapes = report_steps.measured_budgets(config.buckets, options)
    config = config.model_copy(update={"buckets": budgets})
    dataset = open_dataset(options.dataset, config.storage, NOT_READ)
    if shapes is not None:
        keep_shapes(dataset.storage, shapes, str(options.shapes))
    if options.samples is not None:
        keep_sampled(dataset, options.samples)
    # The page, served or written, and the same numbers in the terminal.
    if options.serve:
        from reelweave.pipelines.report.serve.dataset_pages import DatasetPages

        pages = DatasetPages(dataset, *report_files(dataset, config))
        serve(pages, options, {"dataset": dataset.storage.root})
        return 0
    with curation_progress(run=options.dataset) as progress:
        where, figures = _write_report(dataset, config, progress)
    if options.json:
        print_json({**figures.to_json(), "report": where})
        return 0
    print_recipe(figures)
    print_buckets(dataset, config)
    for sentence in figures.leakage.sentences if figures.leakage else ():
        stdout().print(sentence, markup=False, soft_wrap=True)
    if figures.plan is not None:
        report_steps.print_plan(dataset.storage.root, figures.plan)
    report_steps.print_fit(figures.cost_fit)
    stdout().print(f"report: {where}", soft_wrap=True)
    return 0


def spare_memory() -> None:
    """Let Arrow take memory from the system and do without pandas, for the rest of the process.

    Arrow's own allocator keeps much freed memory: 70 MB of the tables of 100,000 clips. Arrow also imports pandas where
    it is installed, which takes 48 MB and is not used here.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    hidden = _HiddenPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])  # where Arrow looks for pandas, once in a process
    finally:
        sys.meta_path.remove(hidden)


class _HiddenPandas(MetaPathFinder):
    """Finder of modules that finds no pandas."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Refuse pandas, and leave all other modules to other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not needed", name=fullname)


def write_report(
    dataset: Dataset, config: ReportConfig, progress: "Callable[[Progress], None]" = lambda _: None
) -> str:
    """Write ``report/index.html`` and the files beside it into the dataset; return the page's URI.

    The same dataset and configuration give the same files.

    Args:
        dataset: the dataset.
        config: buckets and limits.
        progress: called at the begin, and while clips are decoded for their pictures.
    """
    return _write_report(dataset, config, progress)[0]


def _write_report(
    dataset: Dataset, config: ReportConfig, progress: "Callable[[Progress], None]"
) -> tuple[str, "DatasetFigures"]:
    """Write the report, and return the page's URI and its numbers."""
    from reelweave.pipelines.report.web.files import publish

    while True:
        figures, page, beside, _ = _make_report(dataset, config, progress=progress)
        stay = [Path(KEPT).name, Path(KEPT_SHAPES).name, *sampled_files(dataset)]
        # Before the page: a run that is killed between them leaves no page without its configuration.
        keep(dataset.storage, config)
        where = publish(dataset.storage, "report/", page, beside, stay)
        # A report takes no lease; what was taken down while it was made must not come back with it.
        now = read_manifest(dataset.storage)
        if now == dataset.manifest:
            return where, figures
        dataset = Dataset(dataset.storage, config.storage, dataset.without)


class ServedReport(NamedTuple):
    """Report that a server shows.

    Attributes:
        page: HTML of ``index.html``.
        beside: files beside it, made as they are read.
        captions: captions in the order of the gallery's rows, for the server to search.
    """

    page: str
    beside: Files
    captions: pa.ChunkedArray


def report_files(dataset: Dataset, config: ReportConfig) -> ServedReport:
    """Return a report to be served; captions longer than `SERVED_CHARS` are cut where they are shown."""
    _, page, beside, captions = _make_report(dataset, config, SERVED_CHARS)
    return ServedReport(page, beside, captions)


def _make_report(
    dataset: Dataset,
    config: ReportConfig,
    most_chars: int | None = None,
    progress: "Callable[[Progress], None]" = lambda _: None,
) -> tuple["DatasetFigures", str, Files, pa.ChunkedArray]:
    """Return the report's numbers, its page, the files beside it, and captions in the gallery's order.

    Args:
        dataset: the dataset.
        config: buckets and limits.
        most_chars: characters after which captions are cut; None to keep them within their share of the files.
        progress: called at the begin, and while clips are decoded for their pictures.
    """
    from reelweave.curate.run.runners.progress import Progress
    from reelweave.pipelines.report.gallery.files import make_gallery
    from reelweave.pipelines.report.map.files import map_files
    from reelweave.pipelines.report.numbers.dataset import dataset_numbers
    from reelweave.pipelines.report.numbers.dataset_map import dataset_map
    from reelweave.pipelines.report.numbers.scores import Scores
    from reelweave.pipelines.report.page import render_page
    from reelweave.pipelines.report.thresholds import threshold_files

    def report_pictures(done: int, total: int) -> None:
        progress(Progress(REPORTING, done, total, done, total))

    report_pictures(0, 0)
    mapped = dataset_map(dataset, config)
    scores = Scores.of(dataset)
    figures = dataset_numbers(dataset, config, mapped, scores)
    gallery = make_gallery(dataset, config, mapped, scores, most_chars, report_pictures)
    beside = Files(
        threshold_files(dataset, scores),
        gallery.files,
        map_files(dataset, mapped, figures.map, gallery),
    )
    return figures, render_page(dataset, figures, config), beside, gallery.captions


def print_recipe(figures: "DatasetFigures") -> None:
    """Print the yields of the recipe that a dataset was made with, if any."""
    from reelweave.pipelines.report.sections.recipe import recipe_section

    if (section := recipe_section(figures.recipe)) is None:
        return
    out = stdout()
    if not section["rows"]:
        out.print(section["note"], markup=False, soft_wrap=True)
        return
    out.print(table(section["title"], section["columns"], section["rows"]))
    out.print(section["end"], markup=False, soft_wrap=True)


def print_buckets(dataset: Dataset, config: ReportConfig) -> None:
    from reelweave.loader.blend.selected import SelectedSamples
    from reelweave.loader.buckets.assignment import assign
    from reelweave.loader.buckets.crops import large_crops
    from reelweave.loader.buckets.stats import dataset_stats
    from reelweave.loader.buckets.stills import stills
    from reelweave.pipelines.report.sections.buckets import advise_oversized, bound_shown

    chosen = SelectedSamples.of(dataset, config.selection)
    index, keys = chosen.index, chosen.column(dataset.column("key"))
    stats = dataset_stats(index, keys, config.buckets, chosen.column(dataset.column("duration_s")))
    out = stdout()
    if chosen.sentence:
        out.print(chosen.sentence, markup=False, soft_wrap=True)
    out.print(
        table(
            f"buckets of {stats.assigned} of {stats.samples} samples",
            ["bucket", "samples", "S tokens", "B", "bound", "microbatches", "cost share"],
            [
                (
                    f"{b.frames}x{b.height}x{b.width}",
                    b.samples,
                    b.length,
                    b.batch,
                    bound_shown(b.bound, b.over_limit),
                    b.microbatches,
                    f"{b.cost_share:.1%}",
                )
                for b in stats.buckets
            ],
        )
    )
    # What is used in part, and what no bucket takes.
    if advice := advise_oversized(stats.buckets):
        out.print(advice, markup=False, soft_wrap=True)
    assignment = assign(index, config.buckets)
    if clips := stills(index, config.buckets, assignment):
        what = pluralize(len(clips.rows), "clip trains as a still", "clips train as stills")
        out.print(f"{what}: {clips.words}", markup=False, soft_wrap=True)
    if (crops := large_crops(index, assignment)).samples:
        what = pluralize(crops.samples, "sample loses", "samples lose")
        out.print(f"{what} {crops.words}", markup=False, soft_wrap=True)
    for reason, samples in stats.unassigned_reasons.items():
        out.print(f"in no bucket: {pluralize(samples, 'sample')}: {reason}", markup=False, soft_wrap=True)
