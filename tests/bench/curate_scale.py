"""What the driver of a curation costs for each clip: a ledger of many synthetic sources, and nothing left to cut.

    python -m tests.bench.curate_scale [--clips 10000 40000] [--per-source 10] [--pictures 10] [--folder /tmp]

With ``--decide`` it measures the tables alone: entries lie in segments, and there are no arrays, staged clips and
shards. They are loaded, judged and planned, and accounting and scores are written. Otherwise it makes, for each
number of clips, a folder as workers leave it: entries of the cut and of captions, arrays with fingerprints and
embeddings, staged clips of a few bytes. Then a fresh process loads, decides, plans shards and publishes, in the
runner of one process. It reports processor time and growth of peak memory of each phase, and per clip. Left out are
what workers do (writing shards) and the search for near pairs, which is all pairs until it is replaced; the seconds
of both are reported apart. Needs about 1.3 KB of disk for each clip and picture.
"""

import argparse
import functools
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate import dedup
from reelweave.curate.caption.types import Caption
from reelweave.curate.config import CurateConfig
from reelweave.curate.dedup.fingerprint import ARRAY
from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import (
    Record,
    SourceSummary,
    clip_key,
    clip_result,
    source_summary,
    to_columns,
)
from reelweave.curate.run import assembly
from reelweave.curate.run import curate as phases
from reelweave.curate.run.assembly import curation_state, model_stages
from reelweave.curate.run.driver import Driver
from reelweave.curate.run.shard import WriteShard
from reelweave.curate.run.stages.clip_stages import caption_identity
from reelweave.curate.run.state.stored_clips import StoredClips
from reelweave.curate.run.tables.closed import text_id
from reelweave.curate.run.tables.samples import accounting_table, scores_table
from reelweave.curate.run.write_shards import NewShards
from reelweave.curate.source_pass.cut_source import STAGE, arrays_name, source_id
from reelweave.curate.source_pass.tasks import clip_task
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.dataset import ACCOUNTING, SCORES
from reelweave.loader.dataset.tables.parquet import ParquetWriter, to_parquet
from reelweave.loader.storage import open_storage

CONFIG = CurateConfig.model_validate(
    {
        "filters": {"min_motion": 0.02, "max_text_share": 0.97},
        "shard": {"max_shard_mb": 0.032},  # 500 clips of 64 bytes
        "run": {"runner": "sequential", "isolate": False},
    }
)
MEASURED = (
    *("black_share", "white_share", "frozen_share", "slideshow", "duplicate_share", "motion", "motion_local"),
    *("motion_source", "sharpness", "luminance", "contrast", "crushed_share", "clipped_share", "flicker"),
    *("colourfulness", "bars_share", "text_peak", "text_share", "overlay_share", "silent_share"),
    "loudness_dbfs",
)
CLIP_S = 5.0
_SEGMENT = 4096


def main(arguments: list[str] | None = None) -> int:
    """Print a JSON line for each number of clips."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, nargs="+", default=[10_000, 40_000])
    parser.add_argument("--per-source", type=int, default=10, help="clips of each source")
    parser.add_argument("--pictures", type=int, default=10, help="pictures of a fingerprint")
    parser.add_argument("--folder", default=None, help="where the datasets are made, and removed again")
    parser.add_argument("--no-search", action="store_true", help="find no near pairs, rather than all of all")
    parser.add_argument("--decide", action="store_true", help="measure the tables of all clips alone")
    parser.add_argument(
        "--make", metavar="FOLDER", help="make a folder of so many clips, and measure nothing"
    )
    parser.add_argument("--driver", metavar="FOLDER", help="measure a folder that was made before")
    options = parser.parse_args(arguments)
    if options.make:
        [clips] = options.clips
        make_segments(Path(options.make), clips // options.per_source, options.per_source)
        return 0
    if options.driver:
        folder = Path(options.driver)
        print(json.dumps(decide(folder) if options.decide else drive(folder, not options.no_search)))
        return 0
    for clips in options.clips:
        with tempfile.TemporaryDirectory(prefix="reelweave-scale-", dir=options.folder) as name:
            began = time.monotonic()
            if options.decide:
                make_segments(Path(name), clips // options.per_source, options.per_source)
            else:
                make(Path(name), clips // options.per_source, options.per_source, options.pictures)
            made_s = time.monotonic() - began
            again = [sys.executable, "-m", "tests.bench.curate_scale", "--driver", name]
            again += ["--no-search"] if options.no_search else []
            again += ["--decide"] if options.decide else []
            measured = json.loads(subprocess.run(again, check=True, stdout=subprocess.PIPE).stdout)
        print(json.dumps({"clips": clips, "made_s": round(made_s, 1), **measured}, indent=1), flush=True)
    return 0


def make_list(folder: Path, sources: int) -> None:
    """Write a list of empty sources."""
    folder.joinpath("raw").mkdir()
    lines = ["path,caption,licence"]
    for number in range(sources):
        folder.joinpath(f"raw/{number:08d}.mp4").touch()
        lines.append(f"raw/{number:08d}.mp4,a film,CC-BY")
    folder.joinpath("list.csv").write_text("\n".join(lines) + "\n")


def make_segments(folder: Path, sources: int, per_source: int) -> None:
    """Write a list of sources and the segments of their entries, as a long run leaves them."""
    make_list(folder, sources)
    ledger = Ledger(open_storage(folder / "dataset"))
    state = curation_state(CONFIG, ledger, [], None, model_stages(CONFIG), {})
    [stage] = state.inputs.stages
    listed = list_sources([str(folder / "list.csv")], CONFIG.storage)
    # Entries of one segment are made as workers make them; other segments have other digests.
    drawn = [cut(source, per_source, 0)[0] for source in listed[:_SEGMENT]]
    rng = np.random.default_rng(1)
    words = [" ".join(rng.choice(("a", "kite", "over", "the", "sea"), 30)) for _ in range(_SEGMENT)]
    for number, first in enumerate(range(0, len(listed), _SEGMENT)):
        some = listed[first : first + _SEGMENT]
        entries, ids = _entries(some, drawn[: len(some)], rng)
        captions = pa.table(
            {
                "id": ids,
                "text": pa.array(words).take(pa.array(rng.integers(0, len(words), len(ids)))),
                "source": pa.array(["input"]).take(pa.array(np.zeros(len(ids), np.int64))),
            }
        )
        for owner, table in (("cut", entries), (stage.name, captions)):
            fingerprint = state.inputs.cut.fingerprint if owner == "cut" else stage.fingerprint
            path = f"{LEDGER}{owner}/{fingerprint}/packed/{number:06d}.parquet"
            ledger.storage.write(path, to_parquet(table.sort_by("id")))


def _entries(
    sources: list[SourceRef], drawn: list[SourceSummary], rng: np.random.Generator
) -> tuple[pa.Table, pa.Array]:
    """Return entries of sources, drawn but for their digests, and the identities of their clips' captions."""
    table = pa.table(to_columns(drawn))
    lists = table.column("records").combine_chunks()
    rows, which = lists.flatten(), pc.list_parent_indices(lists)
    cut_there = pc.is_valid(rows.field("key"))
    uris = pa.array([source.uri for source in sources]).take(which)
    own = {
        "source": uris,
        "key": pc.if_else(cut_there, _hex(rng, len(rows), 20), None),
        "sha256": pc.if_else(cut_there, _hex(rng, len(rows), 64), ""),
        "source_sha256": pc.if_else(cut_there, _hex(rng, len(sources), 64).take(which), ""),
    }
    names = [field.name for field in rows.type]
    records = pa.StructArray.from_arrays([own.get(name, rows.field(name)) for name in names], names)
    texts = [
        text_id(one.uri, one.caption, two.tags or {}, one.sidecars)
        for one, two in zip(sources, drawn, strict=True)
    ]
    clips = pc.binary_join_element_wise(own["key"], pc.utf8_slice_codeunits(own["sha256"], 0, 16), "-")
    ids = pc.binary_join_element_wise(clips, pa.array(texts).take(which), "-")
    at = table.schema.get_field_index("records")
    table = table.set_column(at, "records", pa.ListArray.from_arrays(lists.offsets, records))
    return table.add_column(0, "id", pa.array(map(source_id, sources))), ids.filter(cut_there)


def _hex(rng: np.random.Generator, count: int, digits: int) -> pa.Array:
    """Return random hexadecimal texts."""
    text = rng.bytes(count * digits // 2).hex().encode()
    offsets = np.arange(count + 1, dtype=np.int32) * digits
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def decide(folder: Path) -> dict[str, Any]:
    """Return what the tables of all clips cost from the ledger to shard plans, accounting and scores."""
    clock = Clock()
    before = peak_bytes()
    storage = open_storage(folder / "dataset")
    # Listing millions of small files is the storage's cost.
    StoredClips.are_at_hand = lambda _, clips, staged: np.ones(len(clips), bool)  # type: ignore[method-assign]
    sources = clock.timed("list", list_sources)([str(folder / "list.csv")], CONFIG.storage)
    state = clock.timed("load", curation_state)(
        CONFIG, Ledger(storage), sources, None, model_stages(CONFIG), {}
    )
    clips = clock.timed("decide", Driver(state, CONFIG.run, lambda _: None).decide)()
    new = clock.timed("order", NewShards)(state, clips, [], 0, CONFIG.shard)
    plans = clock.timed("plan", lambda: sum(map(len, new.plans())))()
    accounting, scores = (
        clock.timed(name, written)(schema, (make(table, state.inputs.listed) for table in clips))
        for name, schema, make in (
            ("accounting", ACCOUNTING, accounting_table),
            ("scores", SCORES, scores_table),
        )
    )
    rows = sum(map(len, clips))
    spent_s = sum(clock.spent_s.values())
    return {
        "rows": rows,
        "kept": len(new.order.places),
        "shards": plans,
        "before_mb": round(before / 1e6),
        "cpu_us_per_clip": {label: round(1e6 * spent / rows, 2) for label, spent in clock.spent_s.items()},
        "grown_bytes_per_clip": {label: round((peak - before) / rows) for label, peak in clock.peaks.items()},
        "us_per_clip": round(1e6 * spent_s / rows, 1),
        "bytes": {"accounting": accounting, "scores": scores},
    }


def written(schema: pa.Schema, tables: Iterator[pa.Table]) -> int:
    """Return the size of tables as one Parquet file."""
    with tempfile.NamedTemporaryFile() as file:
        with ParquetWriter(Path(file.name), schema) as writer:
            for table in tables:
                writer.add(table)
        return Path(file.name).stat().st_size


def make(folder: Path, sources: int, per_source: int, pictures: int) -> None:
    """Write a list of sources and the entries, arrays and clips that workers make of them."""
    make_list(folder, sources)
    ledger = Ledger(open_storage(folder / "dataset"))
    state = curation_state(CONFIG, ledger, [], None, model_stages(CONFIG), {})
    [captions] = state.inputs.stages
    clips = folder / "dataset/.ledger/clips"
    clips.mkdir(parents=True)
    for source in list_sources([str(folder / "list.csv")], CONFIG.storage):
        summary, arrays = cut(source, per_source, pictures)
        for record in summary.records:
            clips.joinpath(f"{record.clip_id}.mp4").write_bytes(record.sha256.encode())
            words = " ".join(random.Random(record.sha256).choices(("a", "kite", "over", "the", "sea"), k=30))
            identity = caption_identity(clip_task(source, summary, record))
            ledger.entries.write(captions.name, captions.fingerprint, identity, Caption(words, "input"))
        ledger.blobs.write_arrays(arrays_name(source, state.inputs.cut.fingerprint), arrays)
        ledger.entries.write(STAGE, state.inputs.cut.fingerprint, source_id(source), summary)
    ledger.entries.pack(STAGE, state.inputs.cut.fingerprint, source_summary)
    ledger.entries.pack(captions.name, captions.fingerprint, clip_result)


def made_up(
    source: SourceRef,
    content: str,
    part: int,
    parts: int,
    numbers: NDArray[np.float64],
    clip: bytes,
    sha256: str,
) -> Record:
    """Return the record of a clip that was cut, with these scores."""
    scores = dict(zip(MEASURED, numbers.tolist(), strict=True))
    scores |= {"duration_s": CLIP_S, "short_side_px": 720.0, "aspect": 16 / 9, "fps": 25.0}
    scores |= {name: 0.9 * scores[name] for name in ("black_share", "white_share", "frozen_share")}
    start_s = part * CLIP_S
    return Record(
        source=source.uri,
        part=part,
        parts=parts,
        start_s=start_s,
        end_s=start_s + CLIP_S,
        stage="cut",
        key=clip_key(content, start_s, start_s + CLIP_S),
        source_sha256=content,
        frames=125,
        fps=25.0,
        height=720,
        width=1280,
        duration_s=CLIP_S,
        scores={name: scores[name] for name in sorted(scores)},
        sha256=sha256,
        clip_bytes=len(clip),
    )


def cut(source: SourceRef, clips: int, pictures: int) -> tuple[SourceSummary, dict[str, Any]]:
    """Return a source as the pass over it leaves it; every fiftieth fails, and twentieths of clips are filtered."""
    rng = np.random.default_rng(int(hashlib.sha256(Path(source.uri).name.encode()).hexdigest()[:12], 16))
    if rng.random() < 0.02:
        return SourceSummary((Record(source.uri, state="failed", stage="probe", reason="no video"),)), {}
    content = rng.bytes(32).hex()
    records, arrays = [], {}
    for part in range(clips):
        sha256 = rng.bytes(32).hex()
        record = made_up(source, content, part, clips, rng.random(len(MEASURED)), sha256.encode(), sha256)
        records.append(record)
        if not pictures:
            continue
        vector = rng.standard_normal(264).astype(np.float32)
        arrays[f"{record.clip_id}.perceptual"] = (vector / np.linalg.norm(vector)).astype(np.float16)
        arrays[f"{record.clip_id}{ARRAY}"] = rng.integers(0, 255, (pictures, 27, 48), np.uint8)
    return SourceSummary(tuple(records), 12.0, {"title": "a film"}, 1e6, 13.0), arrays


def drive(folder: Path, search: bool) -> dict[str, Any]:
    """Return what each phase of a curation in this process costs."""
    clock = Clock()
    near_pairs = dedup.near_pairs if search else lambda *_, **__: iter(())
    dedup.near_pairs = clock.steps("search", near_pairs)
    WriteShard.__call__ = clock.timed("workers", WriteShard.__call__)
    Driver.decide = clock.timed("decide", Driver.decide)
    phases.begin_state = clock.timed("load", phases.begin_state)
    for module, name, label in (
        (assembly, "list_sources", "list"),
        (phases, "write_shards", "shards"),
        (phases, "publish", "publish"),
        (phases, "_tidy", "tidy"),
    ):
        setattr(module, name, clock.timed(label, getattr(module, name)))
    before = peak_bytes()
    whole = clock.timed("rest", phases.curate)
    manifest = whole([str(folder / "list.csv")], str(folder / "dataset"), CONFIG).manifest
    clips = sum(manifest.totals.accounting.values())
    driver_s = sum(spent for label, spent in clock.spent_s.items() if label not in ("search", "workers"))
    return {
        "rows": clips,
        "kept": manifest.totals.samples,
        "before_mb": round(before / 1e6),
        "cpu_s": {label: round(spent, 2) for label, spent in clock.spent_s.items()},
        "grown_mb": {label: round((peak - before) / 1e6) for label, peak in clock.peaks.items()},
        "driver_us_per_clip": round(1e6 * driver_s / clips, 1),
        "driver_bytes_per_clip": round((max(clock.peaks.values()) - before) / clips),
        "index_sha256": manifest.index_sha256,
    }


class Clock:
    """Processor seconds of nested phases, each without those inside it, and the peak of memory in each."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()
        self.peaks: dict[str, int] = {}
        self._open: list[str] = []
        self._since = time.process_time()

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as a phase."""

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            with self._phase(label):
                return function(*arguments, **options)

        return wrapped

    def steps(self, label: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return the generator function as a phase that is open while it makes its next value."""

        def wrapped(*arguments: Any, **options: Any) -> Iterator[Any]:
            values = function(*arguments, **options)
            while True:
                with self._phase(label):
                    value = next(values, None)
                if value is None:
                    return
                yield value

        return wrapped

    @contextmanager
    def _phase(self, label: str) -> Iterator[None]:
        self._charge()
        self._open.append(label)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now = time.process_time()
        if self._open:
            label = self._open[-1]
            self.spent_s[label] += now - self._since
            self.peaks[label] = max(self.peaks.get(label, 0), peak_bytes())
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        self._since = time.process_time()


def peak_bytes() -> int:
    """Return the largest resident memory of this process since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    sys.exit(main())
