"""Of copies of the same bytes the published one is kept, else the one to which people wrote a caption."""

import json
from pathlib import Path

import pytest

from reelweave.curate.run.curate import Outcome, curate
from reelweave.loader.dataset import open_dataset
from tests.curate.run.test_run import config
from tests.media import write_video
from tests.player import ffmpeg
from tests.thorough import thorough

KITE = "A kite that a person described."


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """The same film as a/film.mp4, without words, and as b/film.mp4, with a sidecar."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_video(tmp_path / name / "film.mp4", (40,))
    (tmp_path / "b/film.txt").write_text(KITE)
    return tmp_path


def made(inputs: list[Path], out: Path, update: bool = False) -> tuple[Outcome, list[tuple[str, str]]]:
    outcome = curate([str(path) for path in inputs], str(out), config(), update=update)
    columns = [open_dataset(str(out)).column(name).to_pylist() for name in ("source", "caption")]
    return outcome, list(zip(*columns, strict=True))


def notes_of(outcome: Outcome) -> list[str]:
    return [note for note in outcome.notes if "another caption, licence" in note]


def test_the_copy_with_a_caption_is_kept(raw: Path) -> None:
    outcome, rows = made([raw / "a", raw / "b"], raw / "ds")
    assert rows == [(f"{raw}/b/film.mp4", KITE)]
    assert not notes_of(outcome)


def test_a_sidecar_without_a_caption_is_no_caption(raw: Path) -> None:
    (raw / "a/film.json").write_text(json.dumps({"size": 7}))
    assert made([raw / "a", raw / "b"], raw / "ds")[1] == [(f"{raw}/b/film.mp4", KITE)]


def test_captions_that_contradict_each_other_are_counted(raw: Path) -> None:
    (raw / "a/film.txt").write_text("A balloon that another person described.")
    outcome, rows = made([raw / "a", raw / "b"], raw / "ds")
    assert rows == [(f"{raw}/a/film.mp4", "A balloon that another person described.")]
    (note,) = notes_of(outcome)
    assert note.startswith("1 copy of a film has another caption")
    assert f"the first: {raw}/b/film.mp4; kept: {raw}/a/film.mp4" in note


@thorough
def test_a_licence_is_preferred_and_counted_where_it_is_lost(raw: Path) -> None:
    (raw / "l.csv").write_text(f"path,licence\n{raw}/a/film.mp4,CC0\n")
    outcome, rows = made([raw / "l.csv", raw / "b"], raw / "ds")
    assert rows == [(f"{raw}/b/film.mp4", KITE)]
    assert len(notes_of(outcome)) == 1
    (raw / "b/film.txt").unlink()
    (raw / "l.csv").write_text(f"path,licence\n{raw}/b/film.mp4,CC0\n")
    outcome, rows = made([raw / "a", raw / "l.csv"], raw / "ds2")
    assert rows == [(f"{raw}/b/film.mp4", "")]
    assert not notes_of(outcome)


def test_a_published_clip_keeps_its_source_and_caption(raw: Path) -> None:
    first = made([raw / "b"], raw / "ds")[1]
    shards = {path: path.read_bytes() for path in (raw / "ds").rglob("*.tar")}
    assert first == [(f"{raw}/b/film.mp4", KITE)]
    (raw / "a/film.txt").write_text("A balloon that another person described.")
    outcome, rows = made([raw / "a", raw / "b"], raw / "ds", update=True)
    assert rows == first
    assert {path: path.read_bytes() for path in (raw / "ds").rglob("*.tar")} == shards
    assert len(notes_of(outcome)) == 1


def test_captions_of_duplicates_are_counted_where_the_kept_clip_has_none(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    film = write_video(raw / "large.mp4", (60,), size=(320, 256))
    for name, height in (("small", 160), ("smaller", 144)):
        ffmpeg(["-i", str(film), "-vf", f"scale=-2:{height}", "-y", str(raw / f"{name}.mp4")])
    (raw / "small.txt").write_text(KITE)
    outcome, rows = made([raw], tmp_path / "ds")
    assert rows == [(f"{raw}/large.mp4", "")]
    (note,) = (note for note in outcome.notes if "duplicate" in note)
    assert note.startswith("1 clip with a caption that people wrote is a duplicate of a clip without one")
    assert f"the first is of {raw}/small.mp4, the kept one of {raw}/large.mp4" in note
    (raw / "large.txt").write_text(KITE)
    outcome, rows = made([raw], tmp_path / "ds", update=True)
    assert rows == [(f"{raw}/large.mp4", KITE)]
    assert not any("duplicate" in note for note in outcome.notes)
