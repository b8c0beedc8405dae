"""Readers of foreign tars whose process somebody else kills, as the kernel does where memory runs out."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.curate.foreign.crew import read_tars
from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import ObjectInfo, open_storage
from tests.commands import reelweave
from tests.curate.foreign.foreign_sets import clips, failed, problems
from tests.foreign_tars import by_webdataset
from tests.thorough import thorough

_KILLS = """
import os, signal, sys
from pathlib import Path
if 'reelweave.curate.frames.child_process' in sys.orig_argv:
    import reelweave.curate.foreign.tar as module
    described = module._describe_sample
    def deadly(region, members):
        left = Path(os.environ['KILLS'])
        if b'two words 2' in region and (count := int(left.read_text())):
            left.write_text(str(count - 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return described(region, members)
    module._describe_sample = deadly
"""


@pytest.fixture
def kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the number of readers that are still to be killed at the sample "two words 2" of a.tar."""
    by_webdataset(tmp_path / "set/a.tar", clips(tmp_path / "raw", 0, 4))
    by_webdataset(tmp_path / "set/b.tar", clips(tmp_path / "raw", 10, 2))
    (tmp_path / "sitecustomize.py").write_text(_KILLS)
    paths = [str(tmp_path), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("KILLS", str(tmp_path / "kills"))
    return tmp_path / "kills"


def test_killed_readers_leave_a_tar_undone_and_no_sample_out(tmp_path: Path, kills: Path) -> None:
    kills.write_text("2")
    done = reelweave("index", tmp_path / "set", "--workers", "1")
    assert done.returncode == 75, done.stderr
    assert "killed 2 times" in done.stderr
    assert "a.tar" in done.stderr
    assert not (tmp_path / "set/manifest.json").exists()
    kills.write_text("1")  # one kill is tried again at once
    done = reelweave("index", tmp_path / "set", "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 6
    assert problems(tmp_path / "set") == []
    assert not (tmp_path / "set/.reelweave-index/killed.json").exists()


@thorough
def test_a_sample_that_is_there_at_kills_of_two_runs_is_left_out_and_named(
    tmp_path: Path, kills: Path
) -> None:
    kills.write_text("4")
    assert reelweave("index", tmp_path / "set", "--workers", "1").returncode == 75
    done = reelweave("index", tmp_path / "set", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "1 sample left out since reading" in done.stderr
    reasons = failed(tmp_path / "set")
    assert [source.split(" at ")[0] for source in reasons] == ["a.tar/clip0002"]
    assert "SIGKILL" in next(iter(reasons.values()))
    assert open_dataset(tmp_path / "set").index.num_rows == 5
    (tmp_path / "set/.reelweave-index/a.tar.parquet").unlink()
    assert reelweave("index", tmp_path / "set", "--workers", "1").returncode == 0
    assert open_dataset(tmp_path / "set").index.num_rows == 6


class StoppedTars(list[ObjectInfo]):
    """Tars before the first of which a person stops the run, once their bytes were counted."""

    counted = False

    def __iter__(self) -> Iterator[ObjectInfo]:
        if self.counted:
            raise KeyboardInterrupt
        self.counted = True
        return super().__iter__()


def test_a_stop_before_the_first_tar_is_no_bug_of_ours(tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM just then ended in an UnboundLocalError."""
    storage, tars = open_storage(tmp_path), StoppedTars([ObjectInfo("a.tar", 1, "v")])
    with pytest.raises(KeyboardInterrupt):
        read_tars(storage, storage, tars, [], 1, lambda _: None)
