"""Ray's sockets lie where no other user of the machine can take their position."""

import os
import stat
from pathlib import Path

import pytest

from reelweave.curate.run.runners.ray_folder import ray_folder


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_the_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reelweave.curate.run.runners.ray_folder._MAX_PATH_CHARS", 1000)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "new"))
    folder = ray_folder().parent
    assert (folder.parent, mode(folder)) == (tmp_path / "new", 0o700)
    folder.chmod(0o777)
    assert mode(ray_folder().parent) == 0o700


def test_what_another_user_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reelweave.curate.run.runners.ray_folder._MAX_PATH_CHARS", 1000)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    uid = os.geteuid()
    folder = ray_folder().parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="set RAY_TMPDIR"):
        ray_folder()
    (tmp_path / f"reelweave-ray-{uid + 1}").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(PermissionError, match=f"reelweave-ray-{uid + 1} is not a folder of this user"):
        ray_folder()


def test_a_path_too_long_for_sockets_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 60)))
    assert ray_folder() == Path("/tmp") / f"reelweave-ray-{os.geteuid()}" / "ray"
