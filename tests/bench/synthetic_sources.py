"""Synthetic sources: files of eight bytes for each clip, and a pass over them that makes clips of 64 bytes up."""

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from reelweave.curate.ledger.records import Record, SourceSummary
from reelweave.curate.source_pass.cut_source import CutSource, arrays_name
from reelweave.curate.sources.inputs import SourceRef
from tests.bench.curate_scale import MEASURED, made_up

_WORDS = ("a", "kite", "over", "the", "sea")
_PICTURES = 2


def make_sources(folder: Path, clips: int, per_source: int) -> None:
    """Write a list of sources with so many clips in all: every fiftieth source is empty, every hundredth a copy."""
    rng = np.random.default_rng(1)
    (folder / "raw").mkdir(parents=True)
    lines, left, number, before = ["path,caption,licence"], clips, 0, np.zeros(0, np.uint64)
    pictures = rng.integers(0, 1 << 62, max(1, clips // 100), np.uint64)  # shown by several clips
    while left:
        count = 0 if number % 50 == 7 else min(left, int(rng.geometric(1 / per_source)))
        shown = rng.integers(0, 1 << 62, count, np.uint64)
        again = rng.random(count) < 0.02
        shown[again] = rng.choice(pictures, int(again.sum()))
        if number % 100 == 13 and 0 < len(before) <= left:
            shown = before
        path = f"raw/{number:08d}.mp4"
        (folder / path).write_bytes(shown.tobytes())
        lines.append(f"{path},{' '.join(rng.choice(_WORDS, 30))},CC-BY")
        left, number, before = left - len(shown), number + 1, shown
    (folder / "list.csv").write_text("\n".join(lines) + "\n")


class SyntheticCut(CutSource):
    """Function from a source of eight bytes for each clip to its summary, as the pass over a film leaves it."""

    def _cut(self, source: SourceRef, file: BinaryIO) -> SourceSummary:
        data = file.read()
        shown = np.frombuffer(data, np.uint64)
        if not len(shown):
            failed = Record(source.uri, state="failed", stage="probe", reason="no video")
            return SourceSummary((failed,))
        content = hashlib.sha256(data).hexdigest()
        rng = np.random.default_rng(int(content[:15], 16))
        scores = rng.random((len(shown), len(MEASURED)))
        records, arrays = [], {}
        for part, picture in enumerate(shown.tolist()):
            clip = hashlib.sha256(f"{content} {part}".encode()).hexdigest().encode()
            sha256 = hashlib.sha256(clip).hexdigest()
            record = made_up(source, content, part, len(shown), scores[part], clip, sha256)
            self.ledger.write_clip(record.clip_id, clip)
            vector, fingerprint = _pictures(picture)
            arrays[f"{record.clip_id}.perceptual"] = vector
            arrays[f"{record.clip_id}.fingerprint"] = fingerprint
            records.append(record)
        self.ledger.write_arrays(arrays_name(source, self.fingerprint), arrays)
        return SourceSummary(tuple(records), 12.0, {"title": "a film"}, 1e6, 13.0)


def _pictures(number: int) -> tuple[Any, Any]:
    """Return embedding and fingerprint of the pictures with a number."""
    rng = np.random.default_rng(number)
    vector = rng.standard_normal(264).astype(np.float32)
    vector = (vector / np.linalg.norm(vector)).astype(np.float16)
    return vector, rng.integers(0, 255, (_PICTURES, 27, 48), np.uint8)
