"""Temporary folders of killed processes go, those of living ones and of other machines stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reelweave.loader.storage.scratch import Scratch

OWNER = """
import sys, time
from reelweave.loader.storage.scratch import Scratch
folder = Scratch("reelweave-test-")
open(f"{folder.name}/much", "w").close()
print(folder.name, flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_its_folder_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.stdout is not None
    with run, run.stdout:
        left = Path(run.stdout.readline().strip())
        with Scratch("reelweave-test-") as own:
            assert left.joinpath("much").exists()
        assert not Path(own).exists()
        run.send_signal(signal.SIGKILL)
    moved = tmp_path / "reelweave-test-of-another-machine"
    moved.mkdir()
    moved.joinpath(".owner").write_text("another")
    tmp_path.joinpath("reelweave-test-unowned").mkdir()
    tmp_path.joinpath("reelweave-test-link").symlink_to(left)
    with Scratch("reelweave-other-"):
        assert left.joinpath("much").exists()
    kept = Scratch("reelweave-test-")
    assert not left.exists()
    assert Path(kept.name).is_dir()
    assert moved.is_dir()
    assert tmp_path.joinpath("reelweave-test-unowned").is_dir()
    name = kept.name
    del kept
    assert not Path(name).exists()
