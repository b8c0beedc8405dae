"""Show a dataset: accounting, distributions, buckets and clips, as HTML and as JSON; plan a cluster's steps."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from loader.blend import is_blend_file, open_source
from loader.buckets.assignment import BucketConfig
from loader.dataset import Dataset, open_dataset, read_manifest, stage_totals
from loader.errors import UsageError
from loader.settings import Settings
from loader.storage import StorageConfig
from pipelines.configuration.config import resolve
from pipelines.report import mixture
from pipelines.report import plan as report_plan
from pipelines.terminal.console import print_json, stdout, table

REPORT = "report/index.html"
DEFAULT_CONFIG = Path(__file__).parent.parent / "configs" / "report.yaml"


class ReportConfig(Settings):
    """The whole configuration of ``reelweave report``."""

    buckets: BucketConfig
    max_clips: int = Field(
        240, ge=0, description="clips shown with a thumbnail, spread evenly over the dataset"
    )
    max_lost: int = Field(500, ge=0, description="rows shown of what was lost")
    storage: StorageConfig = StorageConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("dataset", metavar="DATASET", nargs="?", help="folder or s3:// prefix")
    parser.add_argument(
        "--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help="YAML configuration"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    report_plan.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the HTML report into the dataset and prints the bucket table; or plans for a cluster."""
    if (options.dataset is None) == (options.workload is None):
        raise UsageError("give either a DATASET or --workload NAME")
    if options.workload:
        return report_plan.run(options, mixture.workload(options.workload, options.seed))
    config = resolve(ReportConfig, options.config, options.set)
    if options.world_size is not None:
        source = open_source(options.dataset, config.storage)
        own = mixture.dataset(options.dataset, source, config.buckets, options.seed)
        return report_plan.run(options, own)
    if options.plan_out or options.timings:
        raise UsageError("--plan-out and --timings plan steps, and need --world-size N beside the dataset")
    if is_blend_file(options.dataset):
        raise UsageError(
            f"{options.dataset} is a blend: plan its steps with --world-size N, or report each of its datasets"
        )
    dataset = open_dataset(options.dataset, config.storage)
    where = write_report(dataset, config)
    if options.json:
        print_json({**statistics(dataset, config), "report": where})
        return 0
    print_buckets(dataset, config)
    stdout().print(f"report: {where}", markup=False, soft_wrap=True)
    return 0


def default_config(storage: StorageConfig) -> ReportConfig:
    """The configuration shipped with the package, for a dataset on ``storage``."""
    values = yaml.safe_load(DEFAULT_CONFIG.read_text())
    return ReportConfig(**values, storage=storage)


def statistics(dataset: Dataset, config: ReportConfig) -> dict[str, Any]:
    """Everything the report shows but pictures, as plain values."""
    from loader.buckets.stats import dataset_stats

    return {
        "dataset": dataset.storage.root,
        "totals": dataset.manifest.totals.model_dump(),
        "stages": [asdict(total) for total in stage_totals(dataset.accounting)],
        **dataset_stats(dataset.plan_index, dataset.index.column("key"), config.buckets).to_dict(),
    }


def write_report(dataset: Dataset, config: ReportConfig) -> str:
    """Renders ``report/index.html`` into the dataset; returns its URI. Same dataset, same page."""
    from pipelines.report.page import render

    while True:
        page = render(dataset, statistics(dataset, config), config)
        dataset.storage.write(REPORT, page.encode())
        # A report takes no lease; what was taken down while it was made must not come back with it.
        now = read_manifest(dataset.storage)
        if now == dataset.manifest:
            return dataset.storage.uri(REPORT)
        dataset = Dataset(dataset.storage, config.storage)


def print_buckets(dataset: Dataset, config: ReportConfig) -> None:
    """The bucket table on the console."""
    from loader.buckets.stats import dataset_stats
    from pipelines.report.page import bound_shown, oversized

    stats = dataset_stats(dataset.plan_index, dataset.index.column("key"), config.buckets)
    out = stdout()
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
    if advice := oversized([asdict(bucket) for bucket in stats.buckets]):
        out.print(advice, markup=False, soft_wrap=True)
    for reason, samples in stats.unassigned_reasons.items():
        out.print(f"in no bucket: {samples} samples: {reason}", markup=False, soft_wrap=True)
