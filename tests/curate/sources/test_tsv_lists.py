"""Lists with tabs between their columns, and lists in a folder of films that nobody named."""

import re
from pathlib import Path

import pytest

from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig


def listed(folder: Path, text: str) -> list[SourceRef]:
    (folder / "l.tsv").write_text(text)
    return list_sources([str(folder / "l.tsv")], StorageConfig())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def test_a_list_with_tabs_is_a_list(folder: Path) -> None:
    text = 'path\tcaption\tstart\tend\na.mp4\tA boat, slowly.\t1\t2\nb.mp4\t"Quoted ""twice""."\t\t\n'
    first, second = listed(folder, text)
    assert [Path(source.uri).name for source in (first, second)] == ["a.mp4", "b.mp4"]
    assert [(segment.start, segment.caption) for segment in first.segments] == [(1.0, "A boat, slowly.")]
    assert second.caption == 'Quoted "twice".'


def test_a_quote_that_nobody_closes_takes_no_lines_with_it(folder: Path) -> None:
    text = 'path\tcaption\na.mp4\t"Stay" he said.\nb.mp4\tA boat.\nc.mp4\tTall (6\' 2") man.\n'
    found = {Path(source.uri).name: source for source in listed(folder, text)}
    assert found["b.mp4"].caption == "A boat."
    assert found["c.mp4"].caption == "Tall (6' 2\") man."
    [wrong] = [source for source in found.values() if source.fault]
    assert "is no TSV" in str(wrong.fault)
    opened = listed(folder, 'path\tcaption\na.mp4\tA boat.\nb.mp4\t"Never closed\nc.mp4\tA kite.\n')
    assert [source.fault for source in opened if source.fault], "the lines behind it are lost"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            'path,caption\na.mp4,A boat.\nb.mp4,"Never closed\nc.mp4,A kite.\n',
            "line 3 opens a quote .* up to 4",
        ),
        (
            'path,caption\nb.mp4,"Never closed\nc.mp4,"A kite."\na.mp4,A boat.\n',
            "line 2 opens a quote .* up to 3",
        ),
    ],
)
def test_a_quote_of_csv_that_nobody_closes_is_told_with_the_lines_that_it_takes(
    folder: Path, text: str, lines: str
) -> None:
    (folder / "l.csv").write_text(text)
    sources = list_sources([str(folder / "l.csv")], StorageConfig())
    assert [Path(source.uri).name for source in sources if not source.fault] == ["a.mp4"]
    (fault,) = (source.fault for source in sources if source.fault)
    assert re.search(lines.removeprefix("line 3 ").removeprefix("line 2 "), str(fault))


def test_quoted_lines_and_quotes_within_a_cell_are_read(folder: Path) -> None:
    (folder / "l.csv").write_text('path,caption\na.mp4,"Two\nlines"\nb.mp4,A 5" pipe.\n')
    first, second = list_sources([str(folder / "l.csv")], StorageConfig())
    assert (first.caption, second.caption) == ("Two\nlines", 'A 5" pipe.')


def test_metadata_of_hugging_face_names_films_by_file_name(folder: Path) -> None:
    (folder / "metadata.csv").write_text("file_name,text\na.mp4,A boat.\nb.mp4,A kite.\n")
    sources = list_sources([str(folder), str(folder / "metadata.csv")], StorageConfig())
    assert {Path(source.uri).name: source.caption for source in sources} == {
        "a.mp4": "A boat.",
        "b.mp4": "A kite.",
        "c.mp4": None,
    }


def test_a_list_with_tabs_and_no_path_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="entry 1 has no path"):
        listed(folder, "name\tcaption\nx\ty\n")


def test_lists_in_a_folder_of_films_are_named(folder: Path) -> None:
    (folder / "metadata.csv").write_text("file_name,text\na.mp4,A boat.\n")
    (folder / "notes.md").write_text("x")
    notes: list[str] = []
    list_sources([str(folder)], StorageConfig(), notes.append)
    assert "metadata.csv" in notes[-1]
    assert "name it as an input" in notes[-1]
