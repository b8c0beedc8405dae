"""Forecasts from every part of finished curations against what came: by headers, and by bytes alone.

    python -m tests.bench.forecast DATASET... [--sample 5] [--draws 300]

Each DATASET was made by ``reelweave curate`` in one process; its ledger says what each source gave and cost.
"""

import argparse
import json
import random
import statistics
from collections import defaultdict

from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import source_summary
from reelweave.curate.run.outlook.forecast import Extent, ForecastConfig, SourceCost, extents, forecast
from reelweave.curate.source_pass.cut_source import STAGE, source_id
from reelweave.curate.sources.headers import read_headers
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig

FIGURES = ("clips", "clip_gb", "clip_hours", "core_hours")


def of_dataset(folder: str) -> tuple[list[SourceRef], list[SourceCost]]:
    """Sources of a dataset, and what each gave and cost."""
    dataset = open_dataset(folder)
    ledger = Ledger(dataset.storage)
    sources = [SourceRef(**row) for row in ledger.read_note("inputs")["sources"]]
    clips: dict[str, list[dict]] = defaultdict(list)
    for row in dataset.index.select(["source", "members", "duration_s"]).to_pylist():
        clips[row["source"]].append(row)
    (name,) = ledger.fingerprints(STAGE)
    summaries = ledger.closed(STAGE, name, source_summary)
    measured = []
    for source in sources:
        kept = clips[source.uri]
        clip_bytes = sum(one["size"] for row in kept for one in row["members"] if one["suffix"] == "mp4")
        core_s = summaries[source_id(source)].cpu_s or 0.0
        duration_s = sum(row["duration_s"] for row in kept)
        measured.append(SourceCost(source.uri, len(kept), clip_bytes, duration_s, core_s, 0.0))
    return sources, measured


def main() -> None:
    """Print one JSON line per dataset, basis and figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--sample", type=int, default=5)
    parser.add_argument("--draws", type=int, default=300)
    options = parser.parse_args()
    for folder in options.datasets:
        sources, measured = of_dataset(folder)
        by_header = extents(sources, read_headers(sources, StorageConfig(), ProbeConfig()))
        sizes = {source.uri: float(max(0, source.size)) for source in sources}
        by_bytes = {uri: Extent(size, size, size) for uri, size in sizes.items()}
        working = [one for one in measured if by_header[one.uri].effort > 0]
        truth = forecast(working, sources, by_header, ForecastConfig())
        for basis, extent in (("headers", by_header), ("bytes", by_bytes)):
            rng = random.Random(1)
            errors: dict[str, list[float]] = defaultdict(list)
            held: dict[str, int] = defaultdict(int)
            for _ in range(options.draws):
                found = forecast(rng.sample(working, options.sample), sources, extent, ForecastConfig())
                for name in FIGURES:
                    estimate, came = getattr(found, name), getattr(truth, name).value
                    errors[name].append(abs(estimate.value / came - 1))
                    held[name] += estimate.low <= came <= estimate.high
            for name in FIGURES:
                row = {
                    "dataset": folder.rstrip("/").rsplit("/", 1)[-1],
                    "sources": len(working),
                    "sample": options.sample,
                    "by": basis,
                    "figure": name,
                    "came": round(getattr(truth, name).value, 4),
                    "median_error": round(statistics.median(errors[name]), 3),
                    "error_of_9_in_10": round(statistics.quantiles(errors[name], n=10)[-1], 3),
                    "interval_holds": round(held[name] / options.draws, 3),
                }
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
