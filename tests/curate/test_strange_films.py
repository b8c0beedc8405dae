"""Clips of films that random commands of FFmpeg make show what players show, or their reason says otherwise."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz import other_writers, shown, strange_films
from tests.thorough import nightly

SEEDS = range(40)
PLAIN = 25
"""Seed of a film of pictures and sound in MP4, without further steps."""


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=nightly) for seed in SEEDS])
def test_clips_show_what_players_show(seed: int, tmp_path: Path) -> None:
    film = strange_films.make_film(seed, tmp_path)
    assert film is None or shown.differences(film, tmp_path / "out") == [], film.steps


@pytest.mark.parametrize("name", ["PyAV", "bytes"])
def test_a_seed_writes_a_film_again_the_same_way(name: str, tmp_path: Path) -> None:
    film = strange_films.make_film(PLAIN, tmp_path)
    assert film is not None
    source = other_writers.Source(film.path, "libx264", "aac", lambda _: False)
    found = [
        [other_writers.WRITERS[name](random.Random(seed), source, tmp_path / f"{seed}") for seed in range(6)]
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert any(written.path is not None and written.path.stat().st_size > 1000 for written in found[0])


def test_a_program_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    source = other_writers.Source(tmp_path / "film.mp4", "libx264", "", lambda _: False)
    written = other_writers.by_mkvmerge(random.Random(1), source, tmp_path / "again")
    assert written == other_writers.Written("mkvmerge is not installed", None)


def test_a_shift_of_pictures_or_sound_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    film = strange_films.make_film(PLAIN, tmp_path)
    assert film is not None
    assert len(film.steps) == 1
    assert shown.differences(film, tmp_path / "right") == []
    read = shown.by_pyav

    def shifted(source: Path | bytes) -> shown.Shown | None:
        found = read(source)
        is_clip = isinstance(source, bytes)
        return replace(found, times_s=found.times_s + 0.1) if found is not None and is_clip else found

    monkeypatch.setattr(shown, "by_pyav", shifted)
    found = " ".join(shown.differences(film, tmp_path / "wrong"))
    assert "pictures at wrong times" in found
    assert "sound is off" in found
