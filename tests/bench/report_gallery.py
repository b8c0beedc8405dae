"""What the gallery of a large dataset costs: processor seconds, memory, bytes, and the time to its first paint.

    python -m tests.bench.report_gallery [--rows 100000]

Makes the tables of a dataset with that many rows (60 % kept, 30 % filtered, 10 % duplicates; 24 scores a clip, captions
of 60 to 200 characters) and no tar, so that there are no pictures; makes the gallery's files in a fresh process; and
opens the page in the system's Chromium.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from reelweave.loader.dataset import Content, ShardRecord, open_dataset, publish
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.report.buckets import default_config
from tests.browser import Browser, chromium

_WORDS = [
    "a",
    "boat",
    "crosses",
    "the",
    "harbour",
    "while",
    "gulls",
    "circle",
    "over",
    "grey",
    "water",
    "at",
    "dusk",
]
_SCORES = ("duration_s", "short_side_px", "aspect", "fps", "motion", "motion_local", "sharpness", "luminance")
_SCORES += (
    "contrast",
    "colourfulness",
    "black_share",
    "white_share",
    "clipped_share",
    "frozen_share",
    "flicker",
)
_SCORES += (
    "text_share",
    "text_peak",
    "overlay_share",
    "loudness_dbfs",
    "aesthetic",
    "logo",
    "bars",
    "a",
    "b",
)
_PER_SHARD = 500


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--made", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.made:
        print(json.dumps(made(Path(options.made))))
        return 0
    with tempfile.TemporaryDirectory(prefix="reelweave-gallery-") as name:
        folder = Path(name) / "dataset"
        make(folder, options.rows)
        command = [sys.executable, "-m", "tests.bench.report_gallery", "--made", str(folder)]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        result |= first_paint(folder / "report/gallery.html")
    print(json.dumps({"rows": options.rows, **result}, indent=1))
    return 0


def make(folder: Path, rows: int) -> None:
    """Write the tables of a dataset whose shards are not there."""
    drawn = np.random.default_rng(0)
    kept = rows * 6 // 10
    keys = [f"{number:020x}" for number in range(rows)]
    values = drawn.gamma(2.0, 1.0, (rows, len(_SCORES))).round(6)
    samples, accounting, scores = [], [], []
    for number, key in enumerate(keys):
        source = f"s3://bucket/videos/part-{number // 5000:03}/film-{number // 10:06}.mp4"
        span = {"source": source, "start_s": number % 10 * 4.0, "end_s": number % 10 * 4.0 + 4}
        state = "kept" if number < kept else "filtered" if number < rows * 9 // 10 else "duplicate"
        stage = {"kept": "write", "filtered": "filter.motion", "duplicate": "dedup.perceptual"}[state]
        of = keys[number % kept] if state == "duplicate" else None
        reason = (
            "" if state == "kept" else f"motion {values[number, 4]:.4g} is below filters.min_motion = 0.01"
        )
        given = {"score": None, "threshold": None, "duplicate_of": of}
        accounting.append({**span, "key": key, "state": state, "stage": stage, "reason": reason, **given})
        own = dict(zip(_SCORES, values[number].tolist(), strict=True))
        scores.append({"key": key, **span, "state": state, "scores": own})
        if state == "kept":
            samples.append(sample_row(key, span, own, number, drawn))
    shards = [
        ShardRecord(path, _PER_SHARD * 2048, "0" * 64, samples[start : start + _PER_SHARD])
        for start in range(0, kept, _PER_SHARD)
        if (path := samples[start]["shard"])
    ]
    publish(open_storage(folder), shards, Content(accounting, scores))


def sample_row(
    key: str, span: dict[str, Any], scores: dict[str, float], number: int, drawn: np.random.Generator
) -> dict[str, Any]:
    """Return the row in the index of a sample whose shard is not there."""
    words = drawn.integers(0, len(_WORDS), drawn.integers(12, 40))
    offset = number % _PER_SHARD * 2048
    return {
        "key": key,
        "shard": f"shards/{number // _PER_SHARD:06}.tar",
        "offset": offset,
        "size": 2048,
        "members": [{"suffix": "mp4", "offset": offset + 512, "size": 1000}],
        "frames": 96,
        "fps": 24.0,
        "height": 720,
        "width": 1280,
        "duration_s": 4.0,
        "text_tokens": len(words),
        "caption": " ".join(_WORDS[word] for word in words),
        "caption_source": "model:x",
        "caption_provenance": {},
        "source_sha256": "ab" * 32,
        "attributes": {},
        **span,
        "scores": scores,
        "audio": "none",
        "split": "train",
        "bin": "all",
        "sha256": "cd" * 32,
        "embeddings": {},
        "sample_sha256": "ef" * 32,
        "sample_crc32": number,
    }


def made(folder: Path) -> dict[str, Any]:
    """Make the report's files as `reelweave report` does, the gallery's measured apart."""
    from reelweave.pipelines.commands.look.report import NOT_READ, spare_memory, write_report
    from reelweave.pipelines.report.gallery.files import make_gallery
    from reelweave.pipelines.report.numbers.dataset_map import dataset_map
    from reelweave.pipelines.report.numbers.scores import Scores

    config = default_config(StorageConfig())
    spare_memory()
    imported_mb = peak_mb()
    dataset = open_dataset(folder, without=NOT_READ)
    began, clock = time.process_time(), time.perf_counter()
    files = make_gallery(dataset, config, dataset_map(dataset, config), Scores.of(dataset)).files
    spent = {"processor_s": time.process_time() - began, "wall_s": time.perf_counter() - clock}
    gallery = {**spent, "mb": sum(map(len, files.values())) / 1e6, "files": len(files)}
    del files  # the report makes its own
    most_mb = peak_mb()
    write_report(dataset, config)
    written_mb = peak_mb()
    report = {
        path.relative_to(folder / "report"): path for path in (folder / "report").rglob("*") if path.is_file()
    }
    return {
        "gallery": gallery,
        "imported_peak_mb": imported_mb,
        "gallery_peak_mb": most_mb,
        "report_peak_mb": written_mb,
        "whole_report_mb": sum(path.stat().st_size for path in report.values()) / 1e6,
    }


def peak_mb() -> float:
    """Return the peak memory of this process."""
    # The system's ru_maxrss would begin with that of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def first_paint(page: Path) -> dict[str, Any]:
    """Seconds until the first cards have their text, and until a word was searched in all captions."""
    where = chromium()
    if where is None:
        return {"browser": None}
    with Browser(where) as browser, browser.opened(page) as opened:
        opened.wait_for_selector("body[data-ready]")
        opened.wait_for_selector("#cards a.card[data-ready]")
        ready_s = opened.evaluate("performance.now()") / 1000
        began = time.perf_counter()
        opened.fill("[name=q]", "gulls circle over grey")
        opened.wait_for_selector("body[data-answered^='q=']")
        return {"first_cards_s": ready_s, "search_all_s": time.perf_counter() - began}


if __name__ == "__main__":
    sys.exit(main())
