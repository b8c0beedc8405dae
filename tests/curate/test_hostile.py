"""Whatever one source, sidecar or list entry does, it is accounted for and costs the others nothing."""

import errno
import os
import threading
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.filters.sound import loudness_dbfs
from reelweave.curate.run.curate import curate
from reelweave.curate.source_pass import cut_source
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.read.decode import decode
from reelweave.loader.storage import StorageConfig, open_object, public_url
from reelweave.pipelines.report.gallery.strips import strip
from tests.bench.hostile_sources import prove
from tests.media import write_video
from tests.thorough import beyond

CONFIG = CurateConfig.model_validate(
    {
        "spans": {"min_clip_s": 0.5},
        "filters": {"min_short_side_px": 0, "min_duration_s": 0},
        "run": {"runner": "sequential", "isolate": False},
    }
)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_video(tmp_path_factory.mktemp("film") / "a.mp4", (20,), size=(96, 64)).read_bytes()


@pytest.fixture
def raw(tmp_path: Path, film: bytes) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "good.mp4").write_bytes(film)
    return folder


def rows(raw: Path, out: Path, **options: bool) -> dict[str, dict]:
    """The only row of each source, by its name."""
    curate([str(raw)], str(out), CONFIG, **options)
    found = open_dataset(out).accounting.to_pylist()
    by_name = {row["source"].rsplit("/", 1)[-1]: row for row in found}
    assert len(by_name) == len(found)
    return by_name


def test_a_sidecar_that_cannot_be_read_leaves_its_own_clips_undone_until_it_can(
    raw: Path, film: bytes, tmp_path: Path
) -> None:
    (raw / "other.mp4").write_bytes(film + b"\0" * 8)
    (raw / "other.txt").symlink_to("/proc/self/mem")  # a file that gives no byte to anybody
    with pytest.raises(MachineError, match=r"cannot read .*other\.txt: Input/output error"):
        rows(raw, tmp_path / "out")
    (raw / "other.txt").unlink()
    (raw / "other.txt").write_text("A boat.")
    found = rows(raw, tmp_path / "out")
    assert [found[name]["state"] == "failed" for name in ("good.mp4", "other.mp4")] == [False, False]


def test_an_error_that_nobody_foresaw_fails_its_source_alone(raw: Path, film: bytes, tmp_path: Path) -> None:
    (raw / "other.mp4").write_bytes(film + b"\0" * 8)
    real = cut_source.scan

    def scan(file: object, *rest: object) -> object:
        if str(file.name).endswith("other.mp4"):
            raise KeyError("secret")
        return real(file, *rest)

    with patch.object(cut_source, "scan", scan):
        found = rows(raw, tmp_path / "out")
    assert found["good.mp4"]["state"] == "kept"
    assert (found["other.mp4"]["state"], found["other.mp4"]["stage"]) == ("failed", "cut")
    assert "secret" not in found["other.mp4"]["reason"]
    assert "KeyError" in found["other.mp4"]["reason"]


def test_memory_that_is_not_granted_is_no_fault_of_a_film(raw: Path, film: bytes, tmp_path: Path) -> None:
    (raw / "other.mp4").write_bytes(film + b"\0" * 8)
    real = cut_source.scan

    def scan(file: object, *rest: object) -> object:
        if str(file.name).endswith("other.mp4"):
            raise MemoryError
        return real(file, *rest)

    with (
        patch.object(cut_source, "scan", scan),
        pytest.raises(MachineError, match=r"1 of 2 sources are left undone.*other\.mp4: .*memory"),
    ):
        rows(raw, tmp_path / "out")
    assert {row["state"] for row in rows(raw, tmp_path / "out").values()} == {"kept", "duplicate"}


def test_a_fault_of_the_environment_stops_the_run(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".ledger").mkdir(parents=True)
    (out / ".ledger/clips").write_bytes(b"in the way")
    with pytest.raises(RunError, match=r"\.ledger/clips"):
        curate([str(raw)], str(out), CONFIG)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_shortage_of_the_machine_is_no_fault_of_a_film(raw: Path, tmp_path: Path, number: int) -> None:
    def scan(file: object, *rest: object) -> object:
        raise OSError(number, os.strerror(number), "spool")

    with patch.object(cut_source, "scan", scan), pytest.raises(RunError, match=r"spool.*make room"):
        curate([str(raw)], str(tmp_path / "out"), CONFIG)


def test_a_film_that_changes_while_it_is_read_is_left_undone(raw: Path, tmp_path: Path) -> None:
    real = cut_source.scan

    def scan(file: object, *rest: object) -> object:
        with (raw / "good.mp4").open("ab") as changing:
            changing.write(b"more")
        return real(file, *rest)

    with patch.object(cut_source, "scan", scan), pytest.raises(MachineError, match=r"good\.mp4: changed"):
        rows(raw, tmp_path / "out")
    assert rows(raw, tmp_path / "out")["good.mp4"]["state"] == "kept"


def test_a_pipe_in_place_of_a_file_holds_no_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mp4")
    storage, name = open_object(str(tmp_path / "a.mp4"))

    def read() -> None:
        for use in (storage.open, storage.read):
            with pytest.raises(FileNotFoundError):
                use(name)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert not reader.is_alive()


@pytest.mark.parametrize(
    "url",
    [
        "http://u:pw]x@[/x",
        "http://u:pw#w@host/x",
        "http://u:pw?w@host/x",
        "http://u:pw/w@host/x.mp4",
        "http://u:pw@host:0/x",
        "http://u:pw@[::1/x",
        "http://u:pw@ho\u2100st/x",
    ],
)
def test_a_wrong_address_is_shown_without_its_password(url: str) -> None:
    assert "pw" not in public_url(url)
    with pytest.raises(Exception, match=r"no web address|names no object") as caught:
        open_object(url, StorageConfig())
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("suffix", beyond(1, ["avi", "mkv", "mp4"]))
def test_a_tag_in_another_encoding_loses_no_film(tmp_path: Path, suffix: str) -> None:
    codec = "mpeg4" if suffix == "avi" else "libx264"
    (tmp_path / "raw").mkdir()
    path = write_video(
        tmp_path / f"raw/good.{suffix}",
        (20,),
        codec=codec,
        audio=suffix != "avi",
        metadata={"title": "A TITLE of five words"},
    )
    data = (
        path.read_bytes().replace(b"A TITLE", b"\xc9 t\xeet\xe9").replace(b"VideoHandler", b"Vid\xe9oHandler")
    )
    assert data != path.read_bytes()
    path.write_bytes(data)
    config = CONFIG.model_copy(update={"captions": CONFIG.captions.model_copy(update={"container": True})})
    curate([str(tmp_path / "raw")], str(tmp_path / "out"), config)
    (row,) = open_dataset(tmp_path / "out").index.to_pylist()
    assert row["caption"] == ""
    video_CTHW = np.empty((3, 1, 64, 96), np.uint8)
    decode(data, np.array([0]), video_CTHW)
    assert (len(loudness_dbfs(data)) > 0) == (suffix != "avi")
    assert strip(data, 0) is not None


def test_fuzzed_films_sidecars_and_lists_are_all_accounted_for(tmp_path: Path) -> None:
    result = prove(tmp_path, films=8, lists=150, seed=18)
    assert result.lost == []
    assert result.states.total() == 8 + 5
    assert result.states["some clips"] >= 5
