"""Faults of the storage of datasets and tars, met by commands and streams that read them: status 75, and no damage."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failing_reads import FailingReads, library
from tests.foreign_tars import by_tarfile, video
from tests.thorough import beyond
from tests.warm import Warm

SOUND = {"FAIL_BELOW": "/nowhere"}


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm({"LD_PRELOAD": str(library())}) as warm:
        yield warm


@pytest.fixture(scope="module")
def indexed(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tars and the dataset that stands over them."""
    folder = tmp_path_factory.mktemp("indexed")
    (folder / "tars").mkdir()
    for number in range(2):
        by_tarfile(
            folder / f"tars/{number}.tar",
            [(f"k{number}{scene}", {"mp4": video(folder, scene), "txt": b"A boat."}) for scene in range(2)],
        )
    assert warm.start("index", str(folder / "tars"), "--out", str(folder / "ds"), env=SOUND).ended()[0] == 0
    return folder


def lasting(path: Path, log: Path, number: int = errno.EIO) -> dict[str, str]:
    return FailingReads(path, number, log, "r", None).env()


@pytest.mark.parametrize("file", beyond(1, ["tars/1.tar", "ds/index.parquet", "ds/plan.arrow"]))
def test_verify_names_the_file_that_cannot_be_read_and_calls_nothing_damaged(
    warm: Warm, indexed: Path, tmp_path: Path, file: str
) -> None:
    env = lasting(indexed / file, tmp_path / "log")
    status, said = warm.start("verify", str(indexed / "ds"), env=env).ended()
    assert (status, "damaged" in said) == (os.EX_TEMPFAIL, False), said
    assert f"{indexed / file}: Input/output error" in said


def test_index_goes_on_with_the_same_command(warm: Warm, indexed: Path, tmp_path: Path) -> None:
    shutil.copytree(indexed / "tars", tmp_path / "tars")
    words = ("index", str(tmp_path / "tars"), "--out", str(tmp_path / "ds"))
    status, said = warm.start(*words, env=lasting(tmp_path / "tars/1.tar", tmp_path / "log")).ended()
    assert (status, "tars/1.tar: Input/output error" in said) == (os.EX_TEMPFAIL, True), said
    assert warm.start(*words, env=SOUND).ended()[0] == 0
    assert warm.start("verify", str(tmp_path / "ds"), env=SOUND).ended()[0] == 0


@pytest.mark.parametrize("times", beyond(1, [2, None]))
def test_a_stream_counts_no_sample_as_bad(indexed: Path, tmp_path: Path, times: int | None) -> None:
    code = f"""
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import MachineError
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config
settings = config(epochs=1, max_bad=100, max_bad_share=1.0)
try:
    bad = [one for batch in VideoStream(open_dataset({str(indexed / "ds")!r}), settings) for one in batch.bad]
    print("bad", len(bad))
except MachineError as error:
    print("fault", error)
"""
    env = FailingReads(indexed / "tars", errno.EIO, tmp_path / "log", "r", times).env()
    env |= {"LD_PRELOAD": str(library())}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.stdout.startswith("bad 0" if times else "fault"), done.stdout + done.stderr
    assert FailingReads(indexed, 0, tmp_path / "log").struck() > 0
