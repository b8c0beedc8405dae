"""Lists with tabs between their columns, and lists in a folder of films that nobody named."""

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
