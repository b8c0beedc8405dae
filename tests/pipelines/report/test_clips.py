"""`reelweave show` and `reelweave extract`: everything of one clip, and its bytes."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.tables import parquet, table_reader
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.commands.look.report import NOT_READ, report_files
from reelweave.pipelines.report.buckets import default_config
from reelweave.pipelines.report.clips.facts import clip_facts
from reelweave.pipelines.report.clips.lookup import find_rows
from tests.commands import reelweave
from tests.loader.stream_clips import make_sample, write
from tests.pipelines.report.conftest import NASTY
from tests.thorough import thorough


def row_of(dataset: Path, source: str, state: str) -> dict[str, Any]:
    """The only row of the accounting with this state, of a source whose name begins so."""
    (found,) = (
        row
        for row in to_rows(open_dataset(dataset).accounting)
        if Path(row["source"]).name.startswith(source) and row["state"] == state
    )
    return found


def shown(*words: object) -> dict[str, Any]:
    done = reelweave("show", *words, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_kept_clip_is_shown_with_all_that_its_tables_hold(curated: Path) -> None:
    dataset = open_dataset(curated)
    accounted = row_of(curated, "a", "kept")
    row = next(one for one in to_rows(dataset.index) if one["key"] == accounted["key"])
    facts = shown(curated, row["key"])
    for name in (
        "caption",
        "caption_source",
        "source",
        "start_s",
        "end_s",
        "frames",
        "fps",
        "sha256",
        "split",
    ):
        assert facts[name] == row[name], name
    assert facts["caption"].startswith("<script>")
    assert {one["name"]: one["value"] for one in facts["scores"]} == row["scores"]
    (limit,) = (one for one in facts["scores"] if one["name"] == "short_side_px")
    assert (limit["min"], limit["passes"]) == (100.0, True)
    assert facts["bucket"]["frames"] == 33
    assert facts["shard"]["offset"] == row["offset"]
    copies = [*facts["duplicates"], *facts["also"]]
    assert {Path(copy["source"]).name for copy in copies} == {"the copy of a.mp4"}
    said = reelweave("show", curated, row["key"][:8]).stdout
    assert row["sha256"] in said
    assert "\u202e" not in said  # nothing that turns a terminal's text around


def test_a_rejected_clip_is_shown_with_the_threshold_that_rejected_it(curated: Path) -> None:
    row = row_of(curated, "small", "filtered")
    for words in ((row["key"],), ("small.mp4", "--at", "0.5"), (row["source"],)):
        facts = shown(curated, *words)
        assert facts["key"] == row["key"]
        assert (facts["state"], facts["stage"]) == ("filtered", "filter.short_side_px")
        assert facts["reason"] == row["reason"]
        assert [one["name"] for one in facts["scores"] if one["passes"] is False] == ["short_side_px"]
    assert "filters.min_short_side_px = 100" in reelweave("show", curated, row["key"]).stdout


def test_a_source_that_gave_no_clip_is_shown_with_its_reason(curated: Path) -> None:
    facts = shown(curated, "<u>empty.mp4")
    assert (facts["state"], facts["key"], facts["reason"]) == ("failed", None, "the file is empty")
    done = reelweave("extract", curated, "<u>empty.mp4")
    assert done.returncode == 2
    assert "is a source" in done.stderr


@pytest.mark.parametrize(("source", "state"), [("a", "kept"), ("small", "filtered")])
def test_a_clip_is_extracted_whole(curated: Path, tmp_path: Path, source: str, state: str) -> None:
    row = row_of(curated, source, state)
    out = tmp_path / "folder" / "clip.mp4"
    done = reelweave("extract", curated, row["key"][:10], "--out", out, "--sidecars", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["files"] == [str(out.with_suffix(suffix)) for suffix in (".mp4", ".txt", ".json")]
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    beside = json.loads(out.with_suffix(".json").read_text())
    if state == "kept":
        assert digest == beside["sha256"]
        assert out.with_suffix(".txt").read_text() == beside["caption"]
        assert beside["caption"].startswith(NASTY[:20])
    else:
        (staged,) = (curated / ".ledger/clips").glob(f"{row['key']}-*.mp4")
        assert staged.stem.endswith(digest[:16])
        assert beside["reason"] == row["reason"]


def test_a_clip_replaces_no_other_file(curated: Path, tmp_path: Path) -> None:
    key = row_of(curated, "a", "kept")["key"]
    out, pipe = tmp_path / "clip.mp4", tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    done = reelweave("extract", curated, key, "--out", pipe)
    assert (done.returncode, pipe.is_fifo()) == (2, True)
    assert "is no file" in done.stderr
    out.with_suffix(".txt").write_text("mine")
    done = reelweave("extract", curated, key, "--out", out, "--sidecars")
    assert done.returncode == 2
    assert f"{tmp_path / 'clip.txt'} exists and holds something else" in done.stderr
    assert not out.exists()
    out.with_suffix(".txt").unlink()
    for _ in range(2):  # again, the same bytes
        assert reelweave("extract", curated, key, "--out", out, "--sidecars").returncode == 0


def test_wrong_keys_end_with_the_nearest(curated: Path) -> None:
    key = row_of(curated, "a", "kept")["key"]
    for command in ("show", "extract"):
        done = reelweave(command, curated, key[:-1] + ("0" if key[-1] != "0" else "1"))
        assert done.returncode == 2
        assert f"the nearest keys are {key}" in done.stderr
        assert reelweave(command, curated, "").returncode == 2
    assert "nearest" not in reelweave("show", curated, "zzz").stderr  # keys that share nothing with it
    done = reelweave("show", curated, "smal.mp4")
    assert "the nearest sources are" in done.stderr
    assert "small.mp4" in done.stderr
    done = reelweave("show", curated, "smal.mp4", "--at", "1")
    assert done.returncode == 2
    assert "small.mp4" in done.stderr
    done = reelweave("show", curated, "small.mp4", "--at", "100")
    assert done.returncode == 2
    assert "none of them at 100 s" in done.stderr


def test_a_beginning_of_several_keys_is_no_key(tmp_path: Path) -> None:
    write(tmp_path, [make_sample(key, b"clip", 9, (80, 64)) for key in ("ab", "abc", "abd", "b")])
    done = reelweave("extract", tmp_path, "a")
    assert done.returncode == 2
    assert "'a' is the beginning of 3 keys" in done.stderr
    assert "ab, abc, abd" in done.stderr
    for word, key in (("ab", "ab"), ("abc", "abc"), ("b", "b")):
        assert shown(tmp_path, word)["key"] == key


def test_damaged_bytes_are_never_written(curated: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(curated, tmp_path / "dataset"))
    dataset = open_dataset(copy)
    shard, offset, size = dataset.media.place(0) or ("", 0, 0)
    with (copy / shard).open("r+b") as tar:
        tar.seek(offset + size // 2)
        tar.write(b"\0damage")
    done = reelweave("extract", copy, dataset.key(0), "--out", tmp_path / "clip.mp4")
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert not (tmp_path / "clip.mp4").exists()


@thorough
def test_a_large_dataset_is_shown_as_a_small_one(curated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = default_config(StorageConfig())

    def seen() -> tuple[object, ...]:
        dataset, shown = open_dataset(curated), open_dataset(curated, without=NOT_READ)
        keys = [key for key in open_dataset(curated).accounting.column("key").to_pylist() if key]
        rows = [row for word in (*keys, "small.mp4", "<u>empty.mp4") for row in find_rows(dataset, word)]
        facts = [clip_facts(dataset, row, config.buckets) for row in rows]
        report = report_files(shown, config)
        assert ("index" in vars(shown)) == (table_reader.GROUP_ROWS > 0)
        return rows, facts, [dataset[0].row, dataset.key(1)], report.page, dict(report.beside)

    small = seen()
    for module, name, value in (
        (table_reader, "GROUP_ROWS", 0),
        (table_reader, "_ROWS_AROUND", 1),
        (parquet, "_BATCH_ROWS", 1),
    ):
        monkeypatch.setattr(module, name, value)
    assert seen() == small
