"""Tars without a usable sample, and tars whose keys repeat each other's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.foreign.run import index_tars
from reelweave.loader import StreamConfig, VideoStream
from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.tables import row_parts
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import UsageError
from tests.curate.foreign.foreign_sets import clips, failed, index, problems
from tests.energon import energon_samples
from tests.foreign_tars import Contents, by_tarfile, by_webdataset, picture, video
from tests.loader.stream_clips import BUCKETS
from tests.thorough import thorough

SINGLE = StreamConfig(
    buckets=BUCKETS.model_copy(update={"frames": (1,), "sizes": ((64, 96),), "max_batch": 1}),
    epochs=1,
    decode=False,
)
PICTURE = {"jpg": picture(1), "txt": b"words"}


def numbered(path: Path, first: int, count: int = 2) -> Path:
    """A tar whose keys count from 0, as those of most tools do."""
    samples: list[tuple[str, Contents]] = [
        (f"{number:06d}", {"jpg": picture(first + number), "txt": f"picture {first + number}".encode()})
        for number in range(count)
    ]
    return by_webdataset(path, samples)


def captions(folder: Path) -> dict[str, str]:
    return {row["key"]: row["caption"] for row in to_rows(open_dataset(folder).index)}


def test_a_tar_without_a_usable_sample_is_a_failed_row_beside_the_others(tmp_path: Path) -> None:
    by_tarfile(tmp_path / "b-good.tar", [("good", PICTURE)])
    by_tarfile(tmp_path / "a-without-members.tar", [])
    (tmp_path / "c-empty.tar").write_bytes(b"")
    (tmp_path / "d-random.tar").write_bytes(np.random.default_rng(0).bytes(10_000))
    by_tarfile(tmp_path / "e-downloads.tar", [(f"{n}", {"json": b'{"status": "404"}'}) for n in range(2)])
    assert index(tmp_path).manifest.totals.accounting["kept"] == 1
    expected = ["c-empty.tar", "d-random.tar", "e-downloads.tar/0", "e-downloads.tar/1"]
    assert sorted(source.split(" at ")[0] for source in failed(tmp_path)) == expected
    assert [len(open_dataset(tmp_path).index), problems(tmp_path)] == [1, []]


def test_tars_that_all_count_from_0_keep_every_sample(tmp_path: Path) -> None:
    for number in range(3):
        numbered(tmp_path / f"train.{number}.tar", 2 * number)
    done = index(tmp_path)
    found = {f"train.{n // 2}/{n % 2:06d}": f"picture {n}" for n in range(6)}
    assert captions(tmp_path) == found
    assert done.manifest.totals.accounting == {"kept": 6, "filtered": 0, "duplicate": 0, "failed": 0}
    assert ["go by tar and key" in note for note in done.notes] == [True]
    assert problems(tmp_path) == []
    buckets = BUCKETS.model_copy(update={"frames": (1,), "sizes": ((64, 96),)})
    stream = VideoStream(open_dataset(tmp_path), StreamConfig(buckets=buckets, epochs=1, workers=1))
    streamed = {
        key: caption for batch in stream for key, caption in zip(batch.keys, batch.captions, strict=True)
    }
    assert streamed == found
    assert len(energon_samples(tmp_path, 6)) == 6


def test_names_stay_when_tars_with_the_same_keys_come_later_and_a_run_goes_on(tmp_path: Path) -> None:
    numbered(tmp_path / "m.tar", 0)
    before = captions(index_of(tmp_path))
    stream = VideoStream(open_dataset(tmp_path), SINGLE)
    first = next(iter(stream))
    state = stream.state_after(first)
    numbered(tmp_path / "a.tar", 10)
    both = captions(index_of(tmp_path))
    assert before.items() < both.items()
    assert both.keys() - before.keys() == {"a/000000", "a/000001"}
    # Those that come later are qualified at once, so that no key depends on what comes after it.
    by_webdataset(tmp_path / "z.tar", [("other", PICTURE)])
    numbered(tmp_path / "a.tar", 20, 3)
    all_three = captions(index_of(tmp_path))
    assert all_three.keys() - both.keys() == {"z/other", "a/000002"}
    assert problems(tmp_path) == []
    stream = VideoStream(open_dataset(tmp_path), SINGLE)
    stream.load_state_dict(state)
    assert sorted([*first.keys, *(key for batch in stream for key in batch.keys)]) == sorted(all_three)


@thorough
def test_an_index_by_parts_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    for number in range(3):
        numbered(tmp_path / f"one/{number}.tar", 10 * number)
    other = Path(shutil.copytree(tmp_path / "one", tmp_path / "other"))
    index(tmp_path / "one")
    monkeypatch.setattr(row_parts, "ROWS", 2)
    monkeypatch.setattr(row_parts, "_HELD_BYTES", 1)
    index(other)
    assert (other / "manifest.json").read_bytes() == (tmp_path / "one/manifest.json").read_bytes()
    assert problems(other) == []


def index_of(folder: Path) -> Path:
    index(folder)
    return folder


def test_a_key_that_comes_twice_in_a_tar_and_a_missing_caption_are_told(tmp_path: Path) -> None:
    twice: list[tuple[str, Contents]] = [
        ("a", PICTURE),
        ("b", {"jpg": picture(2), "txt": b"b"}),
        ("a", PICTURE),
    ]
    silent: list[tuple[str, Contents]] = [
        ("c", {"jpg": picture(3), "json": json.dumps({"tags": []}).encode()})
    ]
    by_tarfile(tmp_path / "x.tar", twice + silent)
    notes = index(tmp_path).notes
    assert [note.split(",")[0].split(" and ")[0] for note in notes] == [
        "left out: 1 sample repeats a key of its own tar; accounting.parquet names them",
        "1 sample has a .txt or .json",
        "1 field of .json or .cls left out (a list)",
    ]
    assert "c of x.tar" in notes[1]
    assert [source.split(" at ")[0] for source in failed(tmp_path)] == ["x.tar/a"]


def test_what_dots_and_encodings_do_is_counted_and_said(tmp_path: Path) -> None:
    film = video(tmp_path, 1)
    samples = [
        (
            "Track 2",
            {"0 (Clean).mp4": film, "0 (Clean).txt": b"clean", "5 (Live).mp4": film, "5 (Live).txt": b"live"},
        ),
        ("pair", {"left.mp4": film, "right.mp4": film, "txt": b"two eyes"}),
        ("still", {"mp4": film, "jpg": b"a still beside its film", "txt": b"one"}),
        ("wide", {"mp4": film, "txt": "un café".encode("utf-16")}),
        ("latin", {"mp4": film, "txt": "un café".encode("latin-1")}),
        ("other", {"mp4": film, "caption.txt": b"under another name"}),
    ]
    by_tarfile(tmp_path / "set/a.tar", samples)
    notes = index_tars(str(tmp_path / "set"), workers=1).notes
    dataset = open_dataset(tmp_path / "set")
    captions = {row["key"]: row["caption"] for row in map(dataset.row, dataset.row_numbers.values())}
    assert captions == {
        "Track 2": "clean",
        "pair": "two eyes",
        "still": "one",
        "wide": "un café",
        "latin": "un caf\ufffd",
        "other": "",
    }
    assert any(note.startswith("2 samples hold several videos") and "0 (clean).mp4" in note for note in notes)
    assert any(note.startswith("1 caption is not UTF-8") for note in notes)
    assert any(note.startswith("1 sample has a .txt or .json and no caption") for note in notes)


def test_files_that_match_the_pattern_and_are_no_tars_are_left_out_and_said(
    tmp_path: Path,
) -> None:
    by_webdataset(tmp_path / "set/part0.tar", clips(tmp_path / "raw", 0, 2))
    by_webdataset(tmp_path / "set/part1", clips(tmp_path / "raw", 10, 1))
    first = index(tmp_path / "set", shards="part*")
    assert first.notes == ()
    assert (tmp_path / "set/part0.tar.idx").exists()
    second = index(tmp_path / "set", shards="part*")
    assert [entry.path for entry in second.manifest.shards] == ["part0.tar", "part1"]
    assert any("--shards part*" in note and "part0.tar.idx" in note for note in second.notes), second.notes
    with pytest.raises(UsageError, match="may be a tar"):
        index(tmp_path / "set", shards="*.idx")


def test_a_file_of_yours_with_the_name_of_a_table_that_only_curate_writes_stays(tmp_path: Path) -> None:
    by_tarfile(tmp_path / "set/a.tar", [("one", {"mp4": video(tmp_path, 1)})])
    own = tmp_path / "set/transitions.parquet"
    own.write_bytes(b"my own")
    for _ in range(2):
        index_tars(str(tmp_path / "set"), workers=1)
        by_tarfile(tmp_path / "set/b.tar", [("two", {"mp4": video(tmp_path, 2)})])
    assert own.read_bytes() == b"my own"
