"""Changing a finished dataset: only what the change asks for is done again, and shards that can stay do."""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reelweave.curate.ledger.records import SourceSummary
from reelweave.curate.run.curate import curate
from reelweave.curate.run.outlook.forecast import ForecastConfig
from reelweave.curate.run.sample_run import forecast_curation
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, Row, open_dataset, verify
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from tests.curate.run.test_run import SMALL, config, tree
from tests.media import write_video
from tests.thorough import thorough


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    for number in range(4):
        write_video(folder / f"{number}.mp4", (40, 30 + 2 * number), first_scene=2 * number)
    write_video(folder / "tiny.mp4", (40,), size=(96, 64), first_scene=8)
    (folder / "broken.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture(scope="module")
def original(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "dataset"
    curate([str(raw)], str(out), config())
    return out


@pytest.fixture
def made(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "dataset"))


@dataclass
class Opened:
    """Which files were opened below a folder, told by Python's own audit events."""

    folder: Path
    paths: set[str]


@pytest.fixture
def opened(raw: Path) -> Iterator[Opened]:
    seen = Opened(raw, set())
    active = [True]

    def audit(event: str, arguments: tuple) -> None:
        if active[0] and event == "open" and str(arguments[0]).startswith(str(raw)):
            seen.paths.add(Path(str(arguments[0])).name)

    sys.addaudithook(audit)
    yield seen
    active[0] = False


def samples(folder: Path) -> list[Row]:
    return open_dataset(folder).index.to_pylist(maps_as_pydicts="strict")


@thorough
def test_without_update_a_finished_dataset_is_left_alone(raw: Path, made: Path) -> None:
    before = tree(made)
    with pytest.raises(UsageError, match="--update"):
        curate([str(raw)], str(made), config(filters={"min_short_side_px": 64}))
    assert tree(made) == before


def test_a_looser_threshold_lets_clips_in_and_opens_no_source(raw: Path, made: Path, opened: Opened) -> None:
    before = {row["key"] for row in samples(made)}
    curate([str(raw)], str(made), config(filters={"min_short_side_px": 32}), update=True)
    now = samples(made)
    assert opened.paths == set()
    assert {Path(row["source"]).name for row in now if row["key"] not in before} == {"tiny.mp4"}
    assert verify(open_storage(made)).problems == []


def test_a_stricter_threshold_takes_clips_out_and_keeps_them_for_later(
    raw: Path, made: Path, opened: Opened
) -> None:
    before = {(row["key"], row["sha256"]) for row in samples(made)}
    curate([str(raw)], str(made), config(filters={"min_duration_s": 1.5}), update=True)
    assert {round(row["duration_s"], 2) for row in samples(made)} == {1.6}
    assert verify(open_storage(made)).problems == []
    curate([str(raw)], str(made), config(), update=True)
    assert opened.paths == set()
    assert {(row["key"], row["sha256"]) for row in samples(made)} == before


def test_a_caption_changes_captions_only(raw: Path, made: Path, opened: Opened) -> None:
    before = {row["key"]: row for row in samples(made)}
    (raw / "0.txt").write_text("Numbers that count.")
    try:
        curate([str(raw)], str(made), config(captions={"max_chars": 100}), update=True)
    finally:
        (raw / "0.txt").unlink()
    assert opened.paths <= {"0.txt"}
    now = {row["key"]: row for row in samples(made)}
    assert {row["caption"] for row in now.values()} == {"", "Numbers that count."}
    assert {key: row["sha256"] for key, row in now.items()} == {
        key: row["sha256"] for key, row in before.items()
    }
    assert verify(open_storage(made)).problems == []


def test_new_sources_add_shards_and_touch_no_old_one(
    raw: Path, made: Path, tmp_path: Path, opened: Opened
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    write_video(more / "new.mp4", (44, 33), first_scene=9)
    old = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in made.glob("shards/*")}
    curate([str(more)], str(made), config(), update=True)
    assert opened.paths == set()
    assert len(samples(made)) == 10
    for path, state in old.items():
        assert (path.read_bytes(), path.stat().st_mtime_ns) == state
    assert verify(open_storage(made)).problems == []
    assert curate([str(more)], str(made), config(), update=True).already_there


def test_failed_sources_are_tried_again_and_no_others(raw: Path, made: Path, opened: Opened) -> None:
    curate([str(raw)], str(made), config(), retry_failed=True)
    assert opened.paths == {"broken.mp4"}


def test_what_was_taken_down_stays_out(raw: Path, made: Path, opened: Opened) -> None:
    gone = str(raw / "1.mp4")
    remove(open_storage(made), Removal(source=gone, date="2026-11-21", reason="on request", samples=0))
    after_removal = samples(made)
    curate([str(raw)], str(made), config(filters={"min_short_side_px": 127}), update=True)
    assert "1.mp4" not in opened.paths
    assert gone not in {row["source"] for row in samples(made)}
    assert len(samples(made)) == len(after_removal)
    rows = [row for row in open_dataset(made).accounting.to_pylist() if row["source"] == gone]
    assert [row["stage"] for row in rows] == ["removal"]
    assert verify(open_storage(made)).problems == []


@dataclass(frozen=True)
class Poisonous(CutSource):
    """Kills its process on one source, as a crashing decoder does."""

    def __call__(self, source: SourceRef) -> SourceSummary:
        import os
        import signal

        if source.uri.endswith("2.mp4"):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__call__(source)


@thorough
def test_a_source_that_kills_its_worker_is_quarantined_by_name(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "dataset"
    with monkeypatch.context() as patched:
        patched.setattr("reelweave.curate.run.assembly.CutSource", Poisonous)
        curate([str(raw)], str(out), config(run={"isolate": True}))
    rows = [row for row in open_dataset(out).accounting.to_pylist() if row["source"].endswith("2.mp4")]
    assert [(row["state"], row["stage"]) for row in rows] == [("failed", "worker")]
    assert "3 times" in rows[0]["reason"]
    assert "SIGSEGV" in rows[0]["reason"]
    assert verify(open_storage(out)).problems == []
    curate([str(raw)], str(out), config(run={"isolate": True}), retry_failed=True)
    assert len(samples(out)) == 8


@thorough
def test_a_forecast_publishes_nothing_and_its_work_is_not_lost(
    raw: Path, tmp_path: Path, opened: Opened
) -> None:
    out = tmp_path / "dataset"
    found = forecast_curation([str(raw)], str(out), config(), ForecastConfig(sample=3))
    assert (found.sources, found.sampled) == (6, 3)
    assert found.clips.value > 0
    assert found.core_hours.value > 0
    assert not (out / "manifest.json").exists()
    sampled = set(opened.paths)
    assert len(sampled) == 3
    opened.paths.clear()
    curate([str(raw)], str(out), config())
    assert opened.paths == {path.name for path in raw.iterdir()} - sampled


def test_values_of_a_list_reach_the_index(raw: Path, tmp_path: Path) -> None:
    listing = tmp_path / "list.csv"
    listing.write_text(f"path,caption,license,channel\n{raw / '0.mp4'},A caption.,CC BY 4.0,seven\n")
    curate([str(listing)], str(tmp_path / "dataset"), config())
    for row in samples(tmp_path / "dataset"):
        assert row["caption"] == "A caption."
        assert row["attributes"] == {"licence": "CC BY 4.0", "channel": "seven"}


def test_a_source_keeps_to_one_split_and_shapes_to_their_shards(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    # A split is drawn by a source's bytes, and those by this machine's encoder: let two of the five be "val".
    digests = [hashlib.sha256((raw / f"{name}.mp4").read_bytes()) for name in (0, 1, 2, 3, "tiny")]
    drawn = sorted(int(digest.hexdigest(), 16) / 2**256 for digest in digests)
    shard = {"val_share": (drawn[1] + drawn[2]) / 2, "bins": {"short_side_px": [100]}, "max_shard_mb": 10}
    curate([str(raw)], str(out), config(shard=shard, filters={"min_short_side_px": 32}))
    rows = samples(out)
    by_source: dict[str, set[str]] = {}
    by_shard: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        by_source.setdefault(row["source"], set()).add(row["split"])
        by_shard.setdefault(row["shard"], set()).add((row["split"], row["bin"]))
    assert sorted(map(sorted, by_source.values())) == [["train"]] * 3 + [["val"]] * 2
    assert all(len(kinds) == 1 for kinds in by_shard.values())
    assert {row["bin"] for row in rows} == {"short_side_px_0", "short_side_px_1"}


def test_a_sidecar_that_is_added_or_changed_is_noticed_and_decodes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out = tmp_path / "raw", tmp_path / "dataset"
    for number, name in enumerate(("one", "two", "three")):
        write_video(raw / f"{name}.mp4", (30,), first_scene=2 * number)
    (raw / "one.txt").write_text("An old caption.")
    (raw / "three.txt").write_bytes("Ein Café.".encode("latin-1"))
    (raw / "two.TXT").write_text("In capitals.")

    def captions() -> dict[str, tuple[str, str]]:
        rows = open_dataset(out).index.to_pylist()
        return {Path(row["source"]).stem: (row["caption"], row["caption_source"]) for row in rows}

    notes = curate([str(raw)], str(out), SMALL).notes
    old = ("An old caption.", "sidecar:one.txt")
    assert captions() == {"one": old, "two": ("", "none"), "three": ("", "unreadable:three.txt")}
    assert any(note.startswith("1 clip has no caption of a sidecar, since it is not UTF-8") for note in notes)
    assert any(".TXT 1" in note for note in notes)
    assert curate([str(raw)], str(out), SMALL).already_there

    (raw / "one.txt").write_text("A new caption.")
    (raw / "two.json").write_text('{"caption": "Added later."}')
    (raw / "three.txt").write_bytes("Ein Café.".encode("utf-16"))
    with pytest.raises(UsageError, match="other inputs"):
        curate([str(raw)], str(out), SMALL)
    monkeypatch.setattr(CutSource, "__call__", lambda *_: pytest.fail("a video was decoded"))
    curate([str(raw)], str(out), SMALL, update=True)
    assert captions() == {
        "one": ("A new caption.", "sidecar:one.txt"),
        "two": ("Added later.", "sidecar:two.json"),
        "three": ("Ein Café.", "sidecar:three.txt"),
    }


def test_sidecars_that_are_not_used_are_counted_by_reason(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "dataset"
    for number, name in enumerate(("one", "two", "three")):
        write_video(raw / f"{name}.mp4", (30,), first_scene=2 * number)
    (raw / "one.json").write_text('{"text": "A boat."}')
    (raw / "two.json").write_text('{"prompt": "A kite."}')
    (raw / "three.txt").write_text(" \n")
    write_video(raw / "four.mp4", (30,), first_scene=6)
    (raw / "four.txt").write_text("word " * 1000)
    notes = curate([str(raw)], str(out), SMALL).notes
    assert any(
        note.startswith(
            '2 clips have no caption of a sidecar, since it is JSON without the key "caption" (the first: '
        )
        for note in notes
    )
    assert any(
        "1 clip has no caption of a sidecar, since it is empty (the first: three.txt)" in note
        for note in notes
    )
    assert any(
        "1 clip has a written caption of more than captions.max_chars = 4,000" in note for note in notes
    )
    origins = {row["caption_source"] for row in open_dataset(out).index.to_pylist()}
    assert 'unused:one.json (JSON without the key "caption")' in origins


def test_what_of_sidecars_is_not_used_is_counted(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "dataset"
    for number, name in enumerate(("one", "two", "three", "four")):
        write_video(raw / f"{name}.mp4", (30,), first_scene=2 * number)
        (raw / f"{name}.txt").write_text("A boat.")
    (raw / "one.json").write_text('{"caption": "A kite.", "licence": "CC0"}')
    (raw / "two.txt").unlink()
    (raw / "two.json").write_text('{"caption": "A lake.", "licence": "CC0", "rating": 5, "empty": null}')
    (raw / "three.json").write_text('{"caption": " A  boat."}')
    notes = curate([str(raw)], str(out), SMALL).notes
    assert [note for note in notes if "NAME.json" in note] == [
        "1 film has a NAME.txt and a NAME.json with different captions: that of NAME.txt is used (not used, the first:"
        " one.json)",
        '2 films have a NAME.json with keys beside "caption", which are not used (the first: one.json (licence)); a'
        " list of inputs keeps such columns as attributes (docs/inputs.md)",
    ]
    rows = {Path(row["source"]).stem: row for row in open_dataset(out).index.to_pylist()}
    assert {name: row["caption"] for name, row in rows.items()} == {
        "one": "A boat.",
        "two": "A lake.",
        "three": "A boat.",
        "four": "A boat.",
    }
    assert dict(rows["two"]["caption_provenance"]) == {"unused_keys": "two.json (licence, rating)"}
    assert not rows["three"]["caption_provenance"]
    assert not rows["four"]["caption_provenance"]


def test_sidecars_of_sources_that_lists_name_are_noticed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, out, path = tmp_path / "raw", tmp_path / "dataset", tmp_path / "list.json"
    for number, name in enumerate(("one", "two", "three")):
        write_video(raw / f"{name}.mp4", (30,), first_scene=2 * number)
        (raw / f"{name}.txt").write_text("An old caption.")
    films = {f"raw/{name}.mp4": {} for name in ("one", "three")}
    path.write_text(json.dumps({**films, "raw/two.mp4": {"caption": "Of the list."}}))

    def captions() -> dict[str, str]:
        return {Path(row["source"]).stem: row["caption"] for row in open_dataset(out).index.to_pylist()}

    curate([str(path)], str(out), SMALL)
    assert curate([str(path)], str(out), SMALL).already_there
    for name in ("one", "two"):
        (raw / f"{name}.txt").write_text("A new caption.")
    (raw / "three.txt").unlink()
    monkeypatch.setattr(CutSource, "__call__", lambda *_: pytest.fail("a video was decoded"))
    curate([str(path)], str(out), SMALL, update=True)
    assert captions() == {"one": "A new caption.", "two": "Of the list.", "three": ""}
    (raw / "two.txt").write_text("Newer.")
    assert curate([str(path)], str(out), SMALL).already_there  # its caption is the list's
