"""Footage of the tests is the same file in every process: keys, splits and orders follow from its bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kept_films
from tests.thorough import thorough

MAKE = """
import sys
from pathlib import Path
from tests import kept_films
from tests.media import write_video

folder, kept_films.FOLDER = Path(sys.argv[1]), None
write_video(folder / "a.mp4", (40, 30))
write_video(folder / "b.mkv", (40,), options={"bf": "3"}, first_scene=2)
"""


def made(folder: Path, memory: str) -> dict[str, bytes]:
    """Files of a process in which memory that was never written holds a byte other than 0."""
    folder.mkdir()
    command = [sys.executable, "-c", MAKE, str(folder)]
    environment = {**os.environ, "MALLOC_PERTURB_": memory}
    subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@thorough
def test_footage_does_not_depend_on_what_memory_held_before(tmp_path: Path) -> None:
    first, second = made(tmp_path / "first", "1"), made(tmp_path / "second", "170")
    assert first.keys() == {"a.mp4", "b.mkv"}
    assert [name for name in first if first[name] != second[name]] == []


def test_a_film_is_made_once_of_the_same_arguments_by_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_films, "FOLDER", tmp_path / "films")
    code, made = tmp_path / "code.py", list[object]()

    def film(*key: object) -> bytes:
        return films.kept(key, lambda: made.append(key) or repr(key).encode())

    code.write_text("1")
    films = kept_films.Films(str(code))
    assert [film("a.mp4", 25), film("a.mp4", 25), film("a.mp4", 30)] == [
        b"('a.mp4', 25)",
        b"('a.mp4', 25)",
        b"('a.mp4', 30)",
    ]
    assert made == [("a.mp4", 25), ("a.mp4", 30)]
    code.write_text("2")
    film("a.mp4", 25)
    assert len(made) == 2, "the code that runs is the one that was imported"
    films = kept_films.Films(str(code))
    film("a.mp4", 25)
    assert made == [("a.mp4", 25), ("a.mp4", 30), ("a.mp4", 25)]
    assert len(list((tmp_path / "films").iterdir())) == 1
