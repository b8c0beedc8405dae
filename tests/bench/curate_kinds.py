"""The cost of curation by kind of film, against a bare decode and encode.

    python -m tests.bench.curate_kinds --films OUT/PART [--repeat 3]

Takes films named KIND-NAME (docs/benchmarks/curate.md). What the floor is says `reelweave.pipelines.benchmarks.curate`:
every packet of the picture decoded once, by one thread, and the pictures of the clips kept encoded once with
the options of the clips; conversions (tone mapping, 10 to 8 bits, 4:2:2 to 4:2:0) are not in it. The second
ratio is over a floor that includes them, one `reelweave.curate.frames.picture.Finisher.finish` for each frame
kept. Processor seconds, user and system, of this process and all its threads; the median of the repetitions'
ratios. Each film is curated and its floor measured in turns. One film is curated beforehand and not counted:
a worker imports once, however many films it sees.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.frames.picture import Finisher, Geometry
from reelweave.curate.frames.source import open_video
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.storage import open_storage
from reelweave.pipelines.benchmarks.curate import floor

Times = tuple[float, float, float]
"""Seconds of curation, of the floor, and of conversions."""


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each film, each kind and all of them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--films", required=True, type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(arguments)
    config = CurateConfig()
    measured: dict[str, list[Times]] = defaultdict(list)
    times(
        list_sources([str(options.films)], config.storage)[0], config
    )  # imports, and tables of whole processes
    for _ in range(options.repeat):
        for source in list_sources([str(options.films)], config.storage):
            measured[Path(source.location).name].append(times(source, config))
    kinds: dict[str, list[list[Times]]] = defaultdict(list)
    for name, runs in measured.items():
        kinds[name.rsplit("-", 1)[0]].append(runs)
        kinds["all"].append(runs)
    for name, runs in measured.items():
        print(json.dumps({"film": name, **row([runs])}))
    for kind, films in kinds.items():
        print(json.dumps({"kind": kind, **row(films)}))
    return 0


def row(films: Iterable[list[Times]]) -> dict[str, float]:
    """Medians over the repetitions of the sums over films."""
    sums = [tuple(map(sum, zip(*runs, strict=True))) for runs in zip(*films, strict=True)]
    return {
        "cpu_s": round(statistics.median(run[0] for run in sums), 2),
        "floor_cpu_s": round(statistics.median(run[1] for run in sums), 2),
        "ratio": round(statistics.median(run[0] / run[1] for run in sums), 3),
        "ratio_with_conversions": round(statistics.median(run[0] / (run[1] + run[2]) for run in sums), 3),
    }


def times(source: SourceRef, config: CurateConfig) -> Times:
    """Curate one film and measure its floor."""
    stage = config.source_stage()
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as folder:
        work = CutSource(stage, config.storage, Ledger(open_storage(folder)), config_digest(stage))
        began = time.process_time()
        records = work(source).records
        cpu_s = time.process_time() - began
    kept = [record for record in records if record.state == "kept"]
    return cpu_s, floor(source, kept, config.cut).cpu_s, converting(source, kept)


def converting(source: SourceRef, kept: list[Record]) -> float:
    """Processor seconds of turning as many decoded frames as were kept into what clips hold."""
    left = sum(record.frames for record in kept)
    if not left:
        return 0.0
    spent = 0.0
    pictures = Finisher(Geometry(kept[0].width, kept[0].height))
    with (
        Path(source.location).open("rb") as file,
        open_video(file) as (container, stream),
    ):
        for frame in container.decode(stream):
            began = time.process_time()
            pictures.finish(frame)
            spent += time.process_time() - began
            left -= 1
            if not left:
                break
    return spent


if __name__ == "__main__":
    sys.exit(main())
