"""Where the processor time of curation goes, by operation, for each film.

    python -m tests.bench.curate_profile --films OUT/PART [--repeat 3] [--set KEY=VALUE ...]

Takes films named KIND-NAME (docs/benchmarks/curate.md). A first film is curated before and not counted, so that imports
and tables are not in it. Processor milliseconds per frame, of this process and all its threads, medians of the
repetitions, by operation (`reelweave.loader.base.operations`), beside those of the floor of `tests.bench.curate_kinds`.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.storage import open_storage
from reelweave.pipelines.benchmarks.curate import floor
from reelweave.pipelines.configuration.config import resolve


def main(arguments: list[str] | None = None) -> int:
    """Print the operations of each film as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--films", required=True, type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="keys")
    options = parser.parse_args(arguments)
    config = resolve(CurateConfig, None, options.keys)
    sources = list_sources([str(options.films)], config.storage)
    profile(sources[0], config)
    for source in sources:
        runs = [profile(source, config) for _ in range(options.repeat)]
        names = sorted({name for run in runs for name in run})
        parts = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in names}
        print(json.dumps({"film": Path(source.location).name} | {k: round(v, 3) for k, v in parts.items()}))
    return 0


def profile(source: SourceRef, config: CurateConfig) -> dict[str, float]:
    """Milliseconds per frame decoded of each operation of curating one film, and of the floor."""
    stage = config.source_stage()
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as folder:
        work = CutSource(stage, config.storage, Ledger(open_storage(folder)), config_digest(stage))
        summary = work(source)
    kept = [record for record in summary.records if record.state == "kept"]
    bare = floor(source, kept, config.cut)
    spent = dict(summary.operation_s or {})
    spent |= {"all": sum(spent.values()), "floor: decode": bare.decode_s, "floor: encode": bare.encode_s}
    return {"frames": bare.frames, "clips": len(kept)} | {
        name: 1000 * seconds / bare.frames for name, seconds in spent.items()
    }


if __name__ == "__main__":
    sys.exit(main())
