"""Files that users name for output: nothing but regular files is replaced, and never without a word."""

import os
from pathlib import Path

import pytest

from reelweave.loader.errors import UsageError
from reelweave.pipelines.terminal.files import write_output, write_whole


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe", "link to itself"])
def test_only_regular_files_are_written(tmp_path: Path, kind: str) -> None:
    path = special(tmp_path, kind)
    before = os.lstat(path)
    for write in (write_whole, write_output):
        with pytest.raises(UsageError, match=r"^--out .*/p (is no file|cannot be written)"):
            write(path, b"new", "--out")
    assert os.lstat(path) == before
    assert len(list(tmp_path.iterdir())) == 1 + (kind == "link to a pipe")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    link, target = tmp_path / "link.mp4", tmp_path / "elsewhere" / "film.mp4"
    target.parent.mkdir()
    link.symlink_to("elsewhere/film.mp4")
    if there:
        target.write_bytes(b"old")
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_file_that_is_replaced_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "costs.json"
    write_output(path, b"first", "--out")
    assert capsys.readouterr().err == ""
    write_output(path, b"second", "--out")
    assert capsys.readouterr().err == f"{path} exists and is replaced\n"
    assert path.read_bytes() == b"second"


def special(folder: Path, kind: str) -> Path:
    path = folder / "p"
    if kind == "folder":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    else:
        os.mkfifo(folder / "pipe" if kind == "link to a pipe" else path)
    if kind == "link to a pipe":
        path.symlink_to("pipe")
    return path
