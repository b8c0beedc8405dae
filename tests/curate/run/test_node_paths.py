"""Nodes of a cluster that do not see what the machine of the command sees."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.curate.run.runners.node_paths import enter_folder, model_paths, source_paths
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import MachineError
from tests.media import write_video
from tests.thorough import beyond

CONFIG = CurateConfig.model_validate(
    {
        "spans": {"min_clip_s": 0.5},
        "filters": {"min_short_side_px": 0, "min_duration_s": 0},
        "run": {"runner": "ray", "isolate": False},
    }
)
_HANDLE = 700


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[Path]:
    """`tmp_path` by a name that this process alone knows, as a disk that no node has mounted."""
    (tmp_path / "raw").mkdir()
    write_video(tmp_path / "raw/a.mp4", (30,), size=(96, 64))
    handle = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    os.dup2(handle, _HANDLE)
    os.close(handle)
    yield Path(f"/proc/self/fd/{_HANDLE}")
    os.close(_HANDLE)


@pytest.mark.parametrize("missing", beyond(1, ["raw", "out"]))
def test_a_node_without_the_inputs_or_the_output_is_named(
    ray_local: str, tmp_path: Path, hidden: Path, missing: str
) -> None:
    folders = {name: (hidden if name == missing else tmp_path) / name for name in ("raw", "out")}
    with pytest.raises(MachineError, match=rf"node .* does not see {hidden}/{missing}"):
        curate([str(folders["raw"])], str(folders["out"]), CONFIG)
    assert not (tmp_path / "out/manifest.json").exists()
    curate([str(tmp_path / "raw")], str(tmp_path / "out"), CONFIG)
    assert open_dataset(tmp_path / "out").index.num_rows == 1


def test_relative_names_need_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work/raw/b").mkdir(parents=True)
    (tmp_path / "work/raw/a.mp4").touch()
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    here = str(tmp_path / "work")
    assert source_paths(["raw/a.mp4", "raw/b/c.mp4"]) == (here, f"{here}/raw")
    assert source_paths([f"{here}/raw/a.mp4", "s3://bucket/b.mp4"]) == (f"{here}/raw/a.mp4",)
    assert source_paths([f"file://{here}/raw/a.mp4", f"{here}/raw/b.mp4"]) == (f"{here}/raw",)
    assert source_paths(["https://example.org/a.mp4"]) == ()
    assert model_paths([Path("../model"), "owner/name"]) == (here, f"{here}/../model")
    enter_folder("", (here,))
    with pytest.raises(MachineError, match=r"node .* does not see /nowhere/raw"):
        enter_folder("/nowhere", ("/nowhere/raw",))
