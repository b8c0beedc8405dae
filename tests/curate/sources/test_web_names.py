"""Web addresses that differ in a parameter alone are films of their own; links signed anew are one, and it is said."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.curate.takedown.takedown import TakeDowns
from reelweave.loader.dataset import Removal
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from tests.httpserver import WebServer, web_server

CONFIG = StorageConfig(max_attempts=2, backoff_base_s=0.001, allow_private=True)


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Serve another film for each number in the query; links with "old" in them have expired."""

    def answer(handler) -> bool:
        query = handler.path.partition("?")[2]
        digits = re.findall(r"\d", query)
        expired = "old" in query
        handler.answer(403 if expired else 200, b"" if expired else b"x" * int(digits[0] if digits else 1))
        return True

    with web_server() as server:
        server.script = answer
        yield server


def listed(path: Path, lines: list[str], notes: list[str] | None = None) -> list[SourceRef]:
    path.write_text("".join(line + "\n" for line in lines))
    return list_sources([str(path)], CONFIG, (notes if notes is not None else []).append)


@pytest.mark.parametrize("parameter", ["key=films/", "session=", "author=", "st=", "token=film", "auth"])
def test_films_that_a_parameter_tells_apart_stay_apart(
    web: WebServer, tmp_path: Path, parameter: str
) -> None:
    films = listed(tmp_path / "l.txt", [f"{web.url}/get?{parameter}{film}" for film in range(1, 6)])
    assert sorted(film.size for film in films) == [1, 2, 3, 4, 5]
    assert all("sha256-" in film.uri and "films/" not in film.uri for film in films)


def test_segments_stay_with_their_film(web: WebServer, tmp_path: Path) -> None:
    rows = [f"{web.url}/get?key=films/{film},0,{film},Words of film {film}." for film in (1, 2, 3)]
    films = listed(tmp_path / "l.csv", ["url,start,end,caption", *rows])
    assert sorted((film.size, [part.caption for part in film.segments]) for film in films) == [
        (film, [f"Words of film {film}."]) for film in (1, 2, 3)
    ]


def test_a_film_that_is_signed_twice_counts_once_and_a_note_says_so(web: WebServer, tmp_path: Path) -> None:
    notes: list[str] = []
    signed = [f"{web.url}/a.mp4?Expires=1&Signature={word}&Key-Pair-Id=K" for word in ("AAA", "BBB")]
    (film,) = listed(
        tmp_path / "l.txt", [*signed, signed[0], f"{web.url}/b.mp4#t=1", f"{web.url}/b.mp4#t=2"], notes
    )[:1]
    assert film.uri == f"{web.url}/a.mp4"
    (note,) = notes
    assert note.startswith(
        "1 film is named by several addresses that differ in user, password or signature alone"
    )
    assert "AAA" not in note


def test_the_link_that_opens_is_taken(web: WebServer, tmp_path: Path) -> None:
    signed = [f"{web.url}/a.mp4?Expires={text}&Signature=z&Key-Pair-Id=K" for text in ("old", "3")]
    (film,) = listed(tmp_path / "l.txt", signed)
    assert (film.fault, film.size, film.location) == (None, 3, signed[1])


def test_different_files_of_one_name_are_refused(web: WebServer, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"l\.txt, line 2: .*/get stands for two addresses .* not for the same file"
    ) as error:
        listed(tmp_path / "l.txt", [f"{web.url}/get?password={film}" for film in (1, 2)])
    assert "password=" not in str(error.value)


def test_a_take_down_holds_for_the_name_that_an_earlier_version_gave() -> None:
    removal = Removal(source="https://host/get", date="2026-11-28", reason="asked for", samples=1)
    digested = "https://host/get?key=sha256-0123456789abcdef"
    down = TakeDowns((removal,)).of_older_names([digested, "https://host/get?id=7"])
    assert down.sources.keys() == {"https://host/get", digested}
