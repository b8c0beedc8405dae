"""A file that cannot grow, as on a full disk, ends every command that writes with status 75, in words."""

import os
from pathlib import Path

import pytest

from tests.foreign_tars import by_tarfile, video
from tests.warm import Warm

# Of bytecode Python would leave the first 2 KiB.
LIMIT = """
import resource, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
"""


@pytest.fixture(scope="module")
def full(warm: Warm) -> Warm:
    """Commands whose files have 2 KiB at most."""
    return warm.prepared(LIMIT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """A folder with a raw film, tars and the dataset that stands over them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "raw").mkdir()
    (folder / "raw/a.mp4").write_bytes(video(folder, 0))
    samples = [(f"k{scene}", {"mp4": video(folder, scene), "txt": b"A boat."}) for scene in range(2)]
    for tars in ("tars", "others"):
        (folder / tars).mkdir()
        by_tarfile(folder / tars / "0.tar", samples)
    assert warm.start("index", str(folder / "tars"), "--out", str(folder / "ds")).ended()[0] == 0
    return folder


COMMANDS = {
    "config": "config init train --out {out}/train.yaml",
    "extract": "extract {folder}/ds k0 --out {out}/a.mp4",
    "report": "report {folder}/ds",
    "index": "index {folder}/others --out {out}/ds",
    "curate": "curate {folder}/raw --out {out}/ds --set run.runner=sequential",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_room_ends_with_one_status(full: Warm, folder: Path, tmp_path: Path, name: str) -> None:
    words = COMMANDS[name].format(folder=folder, out=tmp_path).split()
    status, said = full.start(*words).ended()
    assert "Traceback" not in said
    assert (status, "File too large" in said) == (os.EX_TEMPFAIL, True), said
