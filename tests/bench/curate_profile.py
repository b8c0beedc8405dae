"""Where the processor time of curation goes, part by part, for each film.

    python -m tests.bench.curate_profile --films OUT/PART [--repeat 3]

Takes films named KIND-NAME (docs/benchmarks/curate.md). Parts are timed by wrapping the functions named in ``PARTS``;
the time of a part excludes that of the parts called inside it. A first film is curated before and not counted, so that
imports and tables are not in it. Processor milliseconds per frame, of this process and all its threads, medians of the
repetitions, beside those of the floor of `tests.bench.curate_kinds`.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.storage import open_storage
from reelweave.pipelines.benchmarks.curate import floor

PARTS = {
    "open, probe": (
        "reelweave.curate.frames.source:_open_container",
        "reelweave.curate.frames.source:count_frames",
        "reelweave.curate.source_pass.scan:probe",
    ),
    "decode": ("reelweave.curate.frames.decode.decoder:Decoder._packets",),
    "small pictures": ("reelweave.curate.shots.scale:Scaler.__call__",),
    "shots": (
        "reelweave.curate.shots.colour.detector:ColourDetector.push",
        "reelweave.curate.shots.colour.detector:ColourDetector.finish",
    ),
    "stitch": (
        "reelweave.curate.shots.stitch:SampleEmbeddings.push",
        "reelweave.curate.source_pass.scan:stitch",
        "reelweave.curate.source_pass.lookahead:stitch",
    ),
    "statistics": ("reelweave.curate.source_pass.sampling:FrameStats.push",),
    "lookahead, window": (
        "reelweave.curate.source_pass.lookahead_encode:LookaheadEncoder.push",
        "reelweave.curate.source_pass.lookahead_encode:LookaheadEncoder.finish",
    ),
    "convert": ("reelweave.curate.frames.picture:Finisher.finish",),
    "encode": (
        "reelweave.curate.cut.encode:ClipEncoder.__init__",
        "reelweave.curate.cut.encode:ClipEncoder.show",
        "reelweave.curate.cut.encode:ClipEncoder.finish",
    ),
    "motion": ("reelweave.curate.filters.vectors:MotionMeter.push",),
    "sample": (
        "reelweave.curate.source_pass.sampling:PictureCollector.push",
        "reelweave.curate.source_pass.sampling:PictureCollector.take",
    ),
    "sound": (
        "reelweave.curate.cut.span_sound:sound_of",
        "reelweave.curate.cut.clips:merge",
        "reelweave.curate.cut.verify:_loudness",
    ),
    "verify": ("reelweave.curate.cut.clips:verify",),
    "scores": ("reelweave.curate.source_pass.cut_source:scores",),
    "fingerprints": (
        "reelweave.curate.source_pass.cut_source:embed_pictures",
        "reelweave.curate.source_pass.sampling:print_picture",
    ),
    "hash": (
        "reelweave.curate.source_pass.source_file:sha256_of",
        "reelweave.curate.cut.clip:CutClip.sha256",
    ),
    "ledger": (
        "reelweave.curate.ledger.blobs:LedgerBlobs.write_clip",
        "reelweave.curate.ledger.blobs:LedgerBlobs.write_arrays",
    ),
}


class Stopwatch:
    """Processor seconds by part, each without the parts inside it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time of the context to a part."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = time.process_time()
        if self._open:
            self.spent[self._open[-1]] += now - self._since
        self._since = now

    def watched(self, function: Any, name: str) -> Any:
        """The function with its time charged to a part; a generator's is that of its steps."""
        if isinstance(function, property):
            return property(self.watched(function.fget, name))

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                found = function(*args, **kwargs)
            return self._steps(found, name) if isinstance(found, Iterator) else found

        return call

    def _steps(self, steps: Iterator[Any], name: str) -> Iterator[Any]:
        while True:
            with self.part(name):
                try:
                    found = next(steps)
                except StopIteration:
                    return
            yield found


def main(arguments: list[str] | None = None) -> int:
    """Print the parts of each film as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--films", required=True, type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args(arguments)
    config = CurateConfig()
    sources = list_sources([str(options.films)], config.storage)
    profile(sources[0], config)
    for source in sources:
        runs = [profile(source, config) for _ in range(options.repeat)]
        parts = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        print(json.dumps({"film": Path(source.location).name} | {k: round(v, 3) for k, v in parts.items()}))
    return 0


def profile(source: SourceRef, config: CurateConfig) -> dict[str, float]:
    """Milliseconds per frame decoded of each part of curating one film, of the rest, and of the floor."""
    stage = config.source_stage()
    watch = Stopwatch()
    with ExitStack() as stack:
        for name, places in PARTS.items():
            for place in places:
                owner, attribute, found = located(place)
                stack.enter_context(patch.object(owner, attribute, watch.watched(found, name)))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reelweave-bench-"))
        work = CutSource(stage, config.storage, Ledger(open_storage(folder)), config_digest(stage))
        with watch.part("rest"):
            records = work(source).records
    kept = [record for record in records if record.state == "kept"]
    bare = floor(source, kept, config.cut)
    spent = {name: watch.spent[name] for name in (*PARTS, "rest")}
    spent |= {"all": sum(spent.values()), "floor: decode": bare.decode_s, "floor: encode": bare.encode_s}
    return {"frames": bare.frames, "clips": len(kept)} | {
        name: 1000 * seconds / bare.frames for name, seconds in spent.items()
    }


def located(place: str) -> tuple[Any, str, Callable[..., Any]]:
    """Return the owner, the name and the function of an entry of `PARTS`."""
    module, _, path = place.partition(":")
    *outer, attribute = path.split(".")
    owner: Any = import_module(module)
    for each in outer:
        owner = getattr(owner, each)
    return owner, attribute, vars(owner)[attribute]


if __name__ == "__main__":
    sys.exit(main())
