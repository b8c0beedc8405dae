"""Metadata of other people's samples: what an index keeps of .json and .cls, and what it says of the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
import webdataset

from reelweave.curate.foreign.fields import FieldChoice, LeftOut, fields_of
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, open_dataset
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from tests.curate.foreign.foreign_sets import index, problems
from tests.foreign_tars import by_tarfile, by_webdataset, picture

IMG2DATASET = {
    "url": "https://example.org/3.jpg",
    "caption": "a red boat",
    "key": "000000003",
    "status": "success",
    "error_message": None,
    "width": 96,
    "height": 64,
    "original_width": 1920,
    "original_height": 1280,
    "aesthetic": 5.25,
    "watermarked": False,
    "licence": "cc0",
    "exif": "{}",
    "meta": {"camera": "x100", "gps": {"lat": 1.0}},
    "tags": ["boat", "sea"],
    "id": 12345678901234567890,
}


def sample(key: str, fields: Any, **members: bytes) -> tuple[str, dict[str, bytes]]:
    return key, {"jpg": picture(len(key)), "json": json.dumps(fields).encode(), **members}


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in to_rows(open_dataset(folder).index)}


def test_json_of_a_downloader_becomes_attributes_and_scores(tmp_path: Path) -> None:
    by_webdataset(
        tmp_path / "0.tar", [sample("000000003", IMG2DATASET), sample("000000004", {"caption": "x"})]
    )
    done = index(tmp_path)
    row = rows(tmp_path)["000000003"]
    assert row["caption"] == "a red boat"
    assert row["scores"] == {
        "width": 96.0,
        "height": 64.0,
        "original_width": 1920.0,
        "original_height": 1280.0,
        "aesthetic": 5.25,
    }
    assert row["attributes"] == {
        "url": "https://example.org/3.jpg",
        "status": "success",
        "watermarked": "false",
        "licence": "cc0",
        "exif": "{}",
        "meta.camera": "x100",
        "id": "12345678901234567890",  # a float64 would be another number
    }
    assert (row["source"], row["split"]) == ("0.tar/000000003", "train")
    assert (rows(tmp_path)["000000004"]["scores"], rows(tmp_path)["000000004"]["attributes"]) == ({}, {})
    notes = "\n".join(done.notes)
    assert "1 field of .json or .cls left out (a list), the first: tags of 000000003 in 0.tar" in notes
    assert "left out (more than one level deep), the first: meta.gps of 000000003" in notes
    assert problems(tmp_path) == []
    # The next run reads no tar, and says the same.
    again = index(tmp_path)
    assert (again.tars_read, again.notes) == (0, done.notes)


def test_samples_of_webdatasets_writer(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "0.tar")) as writer:
        writer.write({"__key__": "a", "jpg": picture(1), "cls": 7, "json": {"score": 0.5, "ok": True}})
        writer.write({"__key__": "b", "jpg": picture(2), "cls": 8})
    by_webdataset(
        tmp_path / "1.tar",
        [("c", {"jpg": picture(3), "cls": b"cat"}), ("d", {"jpg": picture(4), "cls": b"1_0"})],
    )
    done = index(tmp_path)
    found = rows(tmp_path)
    assert found["a"]["scores"] == {"cls": 7.0, "score": 0.5}
    assert found["a"]["attributes"] == {"ok": "true"}
    assert found["b"]["scores"] == {"cls": 8.0}
    assert found["c"]["scores"] == {}
    assert any("left out (no whole number), the first: .cls of c in 1.tar" in note for note in done.notes)


def test_fields_are_chosen_and_renamed(tmp_path: Path) -> None:
    by_webdataset(
        tmp_path / "0.tar",
        [
            sample("a", {"video_id": "v1", "aesthetic": 5, "fold": "val", "licence": "cc0"}),
            sample("b", {"video_id": "v1", "aesthetic": 3, "fold": "test"}),
            sample("c", {"aesthetic": 4, "fold": "train", "video_id": " "}),
        ],
    )
    by_webdataset(tmp_path / "1.tar", [sample("d", {"video_id": "v2", "aesthetic": 2, "fold": "val"})])
    choice = "source=json.video_id, score=json.aesthetic, split=json.fold, x=json.aesthetik"
    done = index(tmp_path, fields=choice)
    found = rows(tmp_path)
    assert [found[key]["source"] for key in "abcd"] == ["v1", "v1", "0.tar/c", "v2"]
    assert [found[key]["scores"]["score"] for key in "abcd"] == [5.0, 3.0, 4.0, 2.0]
    assert [found[key]["attributes"] for key in "abcd"] == [
        {"split": split} for split in ("val", "test", "train", "val")
    ]
    # A shard is of one split: tars that mix them are of train.
    assert [found[key]["split"] for key in "abcd"] == ["train", "train", "train", "val"]
    notes = "\n".join(done.notes)
    assert "--fields x=json.aesthetik: no sample has it; did you mean aesthetic?" in notes
    assert (
        "(a split other than train and val: the sample stays in train), the first: test as split of b"
        in notes
    )
    assert "val beside train in one tar, which can be of one split: the sample stays in train" in notes
    assert "missing: tar and key stay the source" in notes
    assert problems(tmp_path) == []
    # Without the option the choice stays; with another one the tars are read again.
    assert index(tmp_path).tars_read == 0
    assert index(tmp_path, fields="none").tars_read == 2
    assert all(row["scores"] == row["attributes"] == {} for row in rows(tmp_path).values())
    assert index(tmp_path, fields="all").tars_read == 2
    assert rows(tmp_path)["a"]["attributes"] == {"video_id": "v1", "fold": "val", "licence": "cc0"}


def test_a_source_of_the_metadata_is_taken_down_by_its_name_and_samples_by_theirs(tmp_path: Path) -> None:
    by_webdataset(
        tmp_path / "0.tar",
        [
            sample(key, {"video_id": source})
            for key, source in (("a", "v1"), ("b", "v1"), ("c", "v2"), ("d", "v3"))
        ],
    )
    index(tmp_path, fields="source=json.video_id")
    done = remove(open_storage(tmp_path), Removal(source="v1", date="2026-11-30", reason="asked", samples=0))
    assert (done.samples, done.manifest.removals[-1].samples) == (2, 2)
    done = remove(
        open_storage(tmp_path), Removal(source="0.tar/c", date="2026-11-30", reason="asked", samples=0)
    )
    assert (done.samples, done.manifest.removals[-1].samples) == (1, 1)
    assert list(rows(tmp_path)) == ["d"]
    assert problems(tmp_path) == []


def test_fields_that_are_called_like_marks_are_told_apart(tmp_path: Path) -> None:
    by_webdataset(tmp_path / "0.tar", [sample("a", {"crop": "container", "view": "front"})])
    done = index(tmp_path)
    assert rows(tmp_path)["a"]["attributes"] == {"json.crop": "container", "json.view": "front"}
    assert not any("edges that their container cuts off" in note for note in done.notes)


def test_types_that_differ_are_told(tmp_path: Path) -> None:
    by_webdataset(tmp_path / "0.tar", [sample("a", {"year": 2020}), sample("b", {"year": 2021})])
    by_webdataset(tmp_path / "1.tar", [sample("c", {"year": "unknown"})])
    notes = "\n".join(index(tmp_path).notes)
    assert "field year is a number in 2 samples (scores) and text in 1 sample (attributes)" in notes


SPLITS = ("train", "val", "test")

HOSTILE = {
    "a text of more than 512 characters": {"long": "x" * 513},
    "no finite number": {"bad": float("nan")},
    "a name that is empty, not printable or of more than 64 characters": {"a\x1b[31m": 1},
    "behind the first 64 of the sample": {f"f{number}": number for number in range(65)},
    "the name of another field": {"a.b": 1, "a": {"b": 2}},
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_fields_beyond_the_bounds_are_counted(reason: str) -> None:
    left_out = LeftOut()
    content = json.dumps(HOSTILE[reason]).encode()
    kept = fields_of("k", {"jpg": b"", "json": content}, FieldChoice(), left_out)
    assert {name: count for name, (count, _) in left_out.counts.items()} == {reason: 1}
    assert len(kept.scores) + len(kept.attributes) <= 64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b" " * (1 << 20) + b"1", "1,048,576"),
    ],
)
def test_files_that_are_no_json_are_counted(content: bytes, reason: str) -> None:
    left_out = LeftOut()
    kept = fields_of("k", {"jpg": b"", "json": content}, FieldChoice(), left_out)
    assert kept == ({}, {}, {})
    [(told, (count, first))] = left_out.counts.items()
    assert reason in told
    assert (count, first) == (1, ".json of k")


def test_half_a_surrogate_pair_and_utf_16(tmp_path: Path) -> None:
    half = b'{"a": "\\ud83d", "b\\udc00": 1}'
    by_tarfile(
        tmp_path / "0.tar",
        [
            ("a", {"jpg": picture(1), "json": half}),
            ("b", {"jpg": picture(2), "json": json.dumps({"city": "Zürich"}).encode("utf-16")}),
            ("5 live.x", {"jpg": picture(3), "json": b'{"n": 1}'}),
        ],
    )
    index(tmp_path)
    found = rows(tmp_path)
    assert found["a"]["attributes"] == {"a": "?"}
    assert found["b"]["attributes"] == {"city": "Zürich"}
    assert found["5 live"]["scores"] == {"n": 1.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "give all, none, or NAME=FIELD"),
        ("none,a=json.b", "give all, none, or NAME=FIELD"),
        ("a=b", "'a=b' is no NAME=FIELD"),
        ("a=json.", "is no NAME=FIELD"),
        ("fps=json.rate", "fps is a name that the index uses itself"),
        ("crop=json.crop", "crop is a name that the index uses itself"),
        ("a=json.b,a=json.c", "gives one name to two fields"),
    ],
)
def test_wrong_choices_are_refused_before_a_tar_is_read(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        index(tmp_path, fields=text)


def test_a_split_that_nothing_heeds_is_told(tmp_path: Path) -> None:
    by_webdataset(
        tmp_path / "0.tar", [sample(key, {"split": split}) for key, split in zip("abc", SPLITS, strict=True)]
    )
    [told] = [note for note in index(tmp_path).notes if "another split" in note]
    assert told.startswith(
        "2 samples state another split than train (test 1, val 1) and are trained on like others"
    )
    by_webdataset(tmp_path / "1.tar", [sample("d", {"split": "val"})])
    [told] = [
        note for note in index(tmp_path, fields="all,split=json.split").notes if "another split" in note
    ]
    assert told.startswith(
        "2 samples state another split than train (test 1, val 1)"
    )  # val in a tar beside train
    assert rows(tmp_path)["d"]["split"] == "val"


def test_one_sample_is_shown_with_its_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_webdataset(tmp_path / "0.tar", [sample("a", {"aesthetic": 5.25, "licence": "cc0", "video_id": "v7"})])
    index(tmp_path, fields="all,source=json.video_id")
    assert main(["show", str(tmp_path), "a", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["source"] == "v7"
    assert shown["attributes"] == {"licence": "cc0"}
    assert [(score["name"], score["value"]) for score in shown["scores"]] == [("aesthetic", 5.25)]
    assert main(["show", str(tmp_path), "a"]) == 0
    assert "aesthetic" in capsys.readouterr().out


def test_the_command_takes_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_webdataset(tmp_path / "0.tar", [sample("a", {"aesthetic": 5, "other": 1})])
    assert main(["index", str(tmp_path), "--workers", "1", "--fields", "score=json.aesthetic", "--json"]) == 0
    assert "fields kept (index.parquet): scores score" in " ".join(
        json.loads(capsys.readouterr().out)["notes"]
    )
    assert rows(tmp_path)["a"]["scores"] == {"score": 5.0}
