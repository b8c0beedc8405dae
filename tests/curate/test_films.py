"""Unusual but real films, whole, through the fused stage; the long list is tests/bench/films.py."""

from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from curate.config import CurateConfig, fingerprint
from curate.inputs import list_sources
from curate.ledger import Ledger
from curate.records import Record
from curate.source_stage import CutSource
from loader.storage import StorageConfig, open_storage
from tests.media import read_numbers, write_video


def curated(path: Path, out: Path, **sections: dict[str, Any]) -> list[tuple[Record, bytes]]:
    """Every record of one source, with its clip."""
    config = CurateConfig.model_validate(sections).source_stage()
    ledger = Ledger(open_storage(out))
    work = CutSource(config, StorageConfig(), ledger, fingerprint(config))
    (source,) = list_sources([str(path)], StorageConfig())
    records = [Record.from_row(row["record"]) for row in work(asdict(source)) if "record" in row]
    return [(record, ledger.read_clip(record.clip_id) if record.sha256 else b"") for record in records]


def test_recordings_joined_without_care_are_cut_where_their_clock_starts_anew(tmp_path: Path) -> None:
    one = write_video(tmp_path / "one.ts", (50,), audio=True)
    other = write_video(tmp_path / "other.ts", (40,), audio=True)
    joined = tmp_path / "joined.ts"
    joined.write_bytes(one.read_bytes() + other.read_bytes())
    (first, clip), (second, later) = curated(joined, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert (first.state, second.state) == ("kept", "kept")
    assert (first.end_s, second.start_s, second.end_s) == (2.0, 2.0, 3.6)
    assert (read_numbers(clip), read_numbers(later)) == (list(range(50)), list(range(40)))
    assert first.audio == "aac"
    assert second.audio == "none (the source's clock steps back before it)"


def test_a_clip_says_of_its_own_frames_how_many_repeat(tmp_path: Path) -> None:
    """A recorder that dropped two frames of three of a film at 30 frames per second."""
    times_s = [*(number / 30 for number in range(15)), *(0.5 + number / 10 for number in range(25))]
    path = write_video(tmp_path / "dropping.mp4", (40,), rate=30, times_s=times_s)
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    shown = read_numbers(clip)
    repeated = sum(one == other for one, other in pairwise(shown)) / (len(shown) - 1)
    assert repeated > 0.5
    assert record.scores["duplicate_share"] == pytest.approx(repeated, abs=0.02)
