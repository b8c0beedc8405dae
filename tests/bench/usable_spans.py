"""Scores of the labelled clips alone: what `tests.bench.usable_clips --scores` needs, in less time than curation.

    python -m tests.bench.usable_spans FOOTAGE OUT [--half NAME ...] [--recipe NAME] [--set scores.KEY=VALUE ...]

Films are decoded once, up to their last labelled clip; nothing is encoded, and no shot is looked for. Scores are those
of curation, by the same code, without those of sound. A further call with the same OUT goes on where the last ended.
What a recipe splits at transitions is not seen here.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.cut.crop import BarMeter
from reelweave.curate.filters import ClipSample, ScoreConfig, scores
from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.frames.picture import Finisher, geometry
from reelweave.curate.frames.source import open_video
from reelweave.curate.shots.scale import Scaler
from reelweave.curate.source_pass.sampling import FrameStats, PictureCollector, without_crop
from reelweave.pipelines.configuration.recipes.given import resolve_curation
from tests.bench.usable_clips import HALVES, absent_films, read_films

_TICK_S = 0.004


class SpanScorer:
    """Scorer of one clip of a film.

    Args:
        head: First frame of the clip.
        stream: Stream of the film.
        config: Measurement of clips.
    """

    def __init__(self, head: VideoFrame, stream: VideoStream, config: ScoreConfig) -> None:
        self._size = geometry(head, stream.sample_aspect_ratio)
        self._finisher, self._small = Finisher(self._size), Scaler(PICTURE)
        self._rate = float(stream.average_rate or stream.guessed_rate or 25)
        self._collector = PictureCollector(stream.codec_context.name, config)
        self._stats = FrameStats()
        assert stream.time_base is not None
        self._bars = BarMeter(stream.time_base, self._rate)
        self._frames = 0

    def push(self, since_s: float, frame: VideoFrame) -> None:
        """Take the next frame, shown so long after the clip's start."""
        picture = self._finisher.finish(frame)
        self._collector.push(since_s, 1 / self._rate, frame, picture)
        self._stats.push(self._small(picture))
        self._bars.push(frame)
        self._frames += 1

    def take(self) -> dict[str, float]:
        """Return the scores of the clip, of what is left of its pictures without bars."""
        collected = self._collector.take()
        luma, steps = self._stats.of(np.arange(self._frames))
        sample = ClipSample(
            pictures=collected.pictures,
            times_s=collected.times_s,
            luma=luma,
            steps=steps,
            motion=collected.motion.motion,
            motion_local=collected.motion.motion_local,
            vectors_missing=collected.motion.vectors_missing,
            width=self._size.width,
            height=self._size.height,
            frames=self._frames,
            fps=self._rate,
            duration_s=self._frames / self._rate,
            audio_dbfs=None,
            text=collected.text,
            edges=collected.edges,
        )
        crop = self._bars.crop(0, self._frames, self._size)
        return scores(sample if crop is None else without_crop(sample, crop, crop.size(self._size)))


def score_film(
    path: Path, clips: Sequence[Sequence[Any]], config: ScoreConfig
) -> Iterator[tuple[float, float, dict[str, float]]]:
    """Yield start, end and scores of each labelled clip of a film."""
    waiting = sorted((float(start), float(end)) for start, end, _ in clips)
    scorer: SpanScorer | None = None
    with path.open("rb") as file, open_video(file, motion_vectors=True) as (container, stream):
        begin_s: float | None = None
        for frame in container.decode(stream):
            if frame.time is None:
                continue
            begin_s = frame.time if begin_s is None else begin_s
            shown_s = frame.time - begin_s
            if scorer and shown_s >= waiting[0][1] - _TICK_S:
                yield *waiting.pop(0), scorer.take()
                scorer = None
            if not waiting:
                return
            if shown_s < waiting[0][0] - _TICK_S:
                continue
            scorer = scorer or SpanScorer(frame, stream, config)
            scorer.push(shown_s - waiting[0][0], frame)
    if scorer:
        yield *waiting[0], scorer.take()


def write_tables(notes: Path, out: Path) -> None:
    """Write what is noted so far as the two tables that the thresholds are applied to."""
    rows = [json.loads(line) for line in notes.read_text().splitlines()]
    clips = [(film["name"], *clip) for film in rows for clip in film["clips"]]
    keys = [f"{name}@{start:.2f}" for name, start, _, _ in clips]
    pairs = pa.map_(pa.string(), pa.float64())
    pq.write_table(
        pa.table({"key": keys, "scores": pa.array([list(each[3].items()) for each in clips], pairs)}),
        out / "scores.parquet",
    )
    spans = {"source": [each[0] for each in clips], "start_s": [each[1] for each in clips]}
    spans |= {"end_s": [each[2] for each in clips]}
    states = {"state": ["kept"] * len(clips), "stage": ["cut"] * len(clips)}
    pq.write_table(pa.table({"key": keys, **spans, **states}), out / "accounting.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("footage", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--half", choices=HALVES, default=["open", "sealed"], nargs="+")
    parser.add_argument("--recipe", default="standard-ocr")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="keys")
    arguments = parser.parse_args()
    config = resolve_curation(arguments.recipe, None, arguments.keys).scores
    films = {name: film for name, film in read_films().items() if film["half"] in arguments.half}
    absent = absent_films(films, arguments.footage)
    arguments.out.mkdir(parents=True, exist_ok=True)
    notes = arguments.out / "films.jsonl"
    scored = (
        {json.loads(line)["name"] for line in notes.read_text().splitlines()} if notes.exists() else set()
    )
    for name in sorted(films.keys() - absent.keys() - scored):
        clips = list(score_film(arguments.footage / name, films[name]["clips"], config))
        with notes.open("a") as file:
            file.write(json.dumps({"name": name, "clips": clips}) + "\n")
        print(f"{name}: {len(clips)} of {len(films[name]['clips'])} clips", flush=True)
    write_tables(notes, arguments.out)


if __name__ == "__main__":
    main()
