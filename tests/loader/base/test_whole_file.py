"""Files and folders appear whole, and a failure leaves nothing behind."""

import os
import stat
from pathlib import Path

import pytest

from reelweave.loader.base.whole_file import whole_file, whole_folder


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    with pytest.raises(RuntimeError, match="half way"), whole_file(tmp_path / "file") as aside:
        aside.write_text("half")
        raise RuntimeError("half way")
    with pytest.raises(RuntimeError, match="half way"), whole_folder(tmp_path / "folder") as aside:
        (aside / "part").write_text("half")
        raise RuntimeError("half way")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "before"


def test_a_folder_appears_with_all_that_is_in_it(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "folder") as aside:
        (aside / "part").write_text("whole")
        assert not (tmp_path / "folder").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "part"]


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_of_a_folder_are_for_those_whom_the_umask_names(
    tmp_path: Path, mask: int, expected: int
) -> None:
    before = os.umask(mask)
    try:
        with whole_folder(tmp_path / "folder") as aside:
            (aside / "below").mkdir()
            for part in (aside / "part", aside / "below" / "part"):
                part.touch(0o600)  # as safetensors does
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "folder").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [expected] * 2
