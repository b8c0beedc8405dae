"""Listed segments that overlap, each split at the shots of its film (spans.listed=shots, spans.overlapping=keep)."""

import json
from pathlib import Path

import pytest

from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, open_dataset, verify
from reelweave.loader.storage import open_storage
from tests.curate.run.test_listed_run import (
    BOAT,
    DEDUP_OFF,
    KITE,
    LAKE,
    accounts,
    assert_whole,
    make,
    shown_by_ffmpeg,
)
from tests.curate.run.test_run import config
from tests.media import read_number, write_video

SPANS = {"spans": {"listed": "shots", "overlapping": "keep", "min_clip_s": 0.5}}
CLIPS = {
    (0.52, 2.4, BOAT),
    (2.4, 4.0, BOAT),
    (1.0, 2.4, KITE),
    (2.4, 4.8, KITE),
    (4.8, 6.0, KITE),
}


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of three shots of 2.4 s, and a list of three segments that overlap."""
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "a.mp4", (60, 60, 60), rate=25, audio=True)
    spans = {BOAT: [0.5, 4.0], KITE: [1.0, 6.0], LAKE: [2.1, 5.1]}
    rows = {"timestamps": list(spans.values()), "sentences": list(spans)}
    (folder / "list.json").write_text(json.dumps({"a.mp4": rows}))
    return folder / "a.mp4"


def test_each_shot_of_each_segment_is_a_clip_once_with_the_frames_of_its_span(
    film: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    make(film.parent / "list.json", out, config(**DEDUP_OFF, **SPANS))
    dataset = open_dataset(out)
    rows = dataset.index.to_pylist()
    assert {(row["start_s"], row["end_s"], row["caption"]) for row in rows} == CLIPS
    assert len(rows) == len(CLIPS)
    for place, row in enumerate(rows):
        path = tmp_path / f"{place}.mp4"
        path.write_bytes(dataset.read_member(place, "mp4"))
        trim = f"trim={row['start_s'] - 0.01}:{row['end_s'] - 0.01}"
        of_span = [read_number(picture) for picture in shown_by_ffmpeg(film, trim)]
        assert [read_number(picture) for picture in shown_by_ffmpeg(path)] == of_span
    accounted = accounts(out, "a.mp4")
    assert_whole(accounted, 7.2)
    same = "the same shot is a clip of another listed segment"
    assert sum(same in (row["reason"] or "") for row in accounted) == 1  # the second shot, of LAKE as of KITE
    assert verify(dataset.storage).problems == []

    # A clip of the other segment shows seconds of this one, and goes with it at once.
    gone = next(row for row in rows if (row["start_s"], row["end_s"]) == (2.4, 4.0))
    done = remove(open_storage(out), Removal(key=gone["key"], date="2026-11-28", reason="asked", samples=0))
    left = {(row["start_s"], row["end_s"], row["caption"]) for row in open_dataset(out).index.to_pylist()}
    assert left == CLIPS - {(2.4, 4.0, BOAT), (2.4, 4.8, KITE)}
    assert len(done.overlapping) == 1
    changed = config(**DEDUP_OFF, **SPANS, filters={"min_duration_s": 0.9})
    make(film.parent / "list.json", out, changed, update=True)
    again = {(row["start_s"], row["end_s"], row["caption"]) for row in open_dataset(out).index.to_pylist()}
    assert again == left
    assert verify(open_storage(out)).problems == []
