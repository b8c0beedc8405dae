"""Faults of the input's storage are no facts about its videos: tried again, then left undone, and never recorded."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.records import SourceSummary
from reelweave.curate.run.curate import curate as curate_here
from reelweave.curate.source_pass import cut_source
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import MachineError
from reelweave.loader.storage.checksums import file_sha256
from tests.failing_reads import FailingReads, library
from tests.media import write_video
from tests.s3server import FaultyProxy, make_bucket, s3_client, s3_server
from tests.thorough import beyond, but, nightly, thorough
from tests.warm import Warm

NAMES = ("a", "b", "c")
CONFIG = CurateConfig.model_validate(
    {
        "spans": {"min_clip_s": 0.5},
        "filters": {"min_short_side_px": 0, "min_duration_s": 0},
        "run": {"runner": "sequential", "isolate": False},
    }
)


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm({"LD_PRELOAD": str(library())}, _QUICK) as warm:
        yield warm


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for number, name in enumerate(NAMES):
        write_video(folder / f"{name}.mp4", (30, 30), size=(96, 64), first_scene=number)
    return folder


@pytest.fixture
def raw(films: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(films, tmp_path / "raw"))


def curate(
    warm: Warm, raw: Path, faults: FailingReads | None = None, isolate: bool = False, *more: str
) -> tuple[int, str]:
    words = ["curate", str(raw), "--out", str(raw.parent / "out"), "--set", "spans.min_clip_s=0.5"]
    words += ["--set", "filters.min_short_side_px=0", "--set", "filters.min_duration_s=0"]
    words += ["--set", "run.runner=sequential", "--set", f"run.isolate={str(isolate).lower()}", *more]
    return warm.start(*words, env=faults.env() if faults else {"FAIL_BELOW": "/nowhere"}).ended()


def states(raw: Path) -> dict[str, set[str]]:
    """The states of each source's spans, by its name."""
    found: dict[str, set[str]] = {}
    for row in open_dataset(raw.parent / "out").accounting.to_pylist():
        found.setdefault(row["source"].rsplit("/", 1)[-1], set()).add(row["state"])
    return found


_QUICK = """
from reelweave.curate.source_pass import cut_source
from reelweave.loader.storage import steady
cut_source._PAUSES_S, steady._PAUSES_S = (0.01, 0.01), (0.01, 0.01, 0.01)
"""
WHOLE = {f"{name}.mp4": {"kept"} for name in NAMES}
PASSING = [
    ("r", errno.EIO, None),
    ("r", errno.EIO, 9_000),
    ("r", errno.ESTALE, None),
    ("ro", errno.EMFILE, None),
    ("r", errno.ETIMEDOUT, None),
    ("o", errno.EACCES, None),
    ("rs", errno.ENOTCONN, None),
    ("r", errno.ENOMEM, None),
    ("o", errno.ENFILE, None),
    ("d", errno.EIO, None),
]


@pytest.mark.parametrize(("what", "number", "from_byte"), but(PASSING[1::4], PASSING, PASSING[3::2]))
def test_a_fault_that_passes_costs_nothing(
    warm: Warm, raw: Path, what: str, number: int, from_byte: int | None
) -> None:
    faults = FailingReads(raw, number, raw.parent / "log", what, 2, from_byte)
    status, said = curate(warm, raw, faults)
    assert (status, faults.struck()) == (0, 2), said
    assert states(raw) == WHOLE


LASTING = [
    (isolate, number) for isolate in (False, True) for number in (errno.EIO, errno.EACCES, errno.ESTALE)
]


@pytest.mark.parametrize(("isolate", "number"), but(LASTING[:1], LASTING, ()))
@pytest.mark.parametrize("from_byte", [None, 9_000])
def test_a_fault_that_lasts_leaves_its_source_undone_and_the_same_command_goes_on(
    warm: Warm, raw: Path, isolate: bool, number: int, from_byte: int | None
) -> None:
    what = "ro" if from_byte is None else "r"
    faults = FailingReads(raw / "b.mp4", number, raw.parent / "log", what, None, from_byte)
    status, said = curate(warm, raw, faults, isolate)
    assert status == os.EX_TEMPFAIL, said
    assert f"{raw}/b.mp4" in said
    assert os.strerror(number) in said
    assert "the same command goes on" in said
    assert "1 of 3 sources" in said
    assert not (raw.parent / "out/manifest.json").exists()
    done = sorted(path.name for path in (raw.parent / "out/.ledger/cut").rglob("*.json"))
    assert len(done) == 2  # the others are done, and this one is not said to have failed
    assert curate(warm, raw, None, isolate)[0] == 0
    assert states(raw) == WHOLE


def test_a_folder_that_cannot_be_listed_is_no_failed_source(warm: Warm, raw: Path) -> None:
    (raw / "inner").mkdir()
    (raw / "c.mp4").rename(raw / "inner/c.mp4")
    faults = FailingReads(raw / "inner", errno.EIO, raw.parent / "log", "ds", None)
    status, said = curate(warm, raw, faults)
    assert (status, f"{raw}/inner" in said) == (os.EX_TEMPFAIL, True), said
    assert curate(warm, raw)[0] == 0
    assert states(raw) == WHOLE


def test_a_sidecar_that_cannot_be_read_is_no_failed_caption(warm: Warm, raw: Path) -> None:
    (raw / "b.txt").write_text("A boat on a lake.")
    status, said = curate(warm, raw, FailingReads(raw / "b.txt", errno.EIO, raw.parent / "log", "r", None))
    assert (status, f"{raw}/b.txt" in said) == (os.EX_TEMPFAIL, True), said
    assert curate(warm, raw)[0] == 0
    assert states(raw) == WHOLE
    captions = {row["caption"] for row in open_dataset(raw.parent / "out").index.to_pylist()}
    assert "A boat on a lake." in captions


def test_a_disk_that_is_gone_ends_the_run_before_every_source_was_tried(warm: Warm, raw: Path) -> None:
    for number in range(20):
        (raw / f"{number:02d}.mp4").write_bytes(b"x" * (number + 1))
    log = raw.parent / "log"
    status, said = curate(warm, raw, FailingReads(raw, errno.EACCES, log, "o", None))
    assert (status, "stopped after 16 sources in a row" in said) == (os.EX_TEMPFAIL, True), said


def test_a_film_that_changed_is_worked_on_by_the_same_command(raw: Path, tmp_path: Path) -> None:
    real, before = cut_source.scan, (raw / "b.mp4").read_bytes()

    def scan(file: object, *rest: object) -> object:
        if file.name.endswith("b.mp4"):
            os.truncate(raw / "b.mp4", len(before) // 2)
        return real(file, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cut_source, "scan", scan)
        with pytest.raises(MachineError, match=r"b\.mp4: changed"):
            curate_here([str(raw)], str(tmp_path / "out"), CONFIG)
    (raw / "b.mp4").write_bytes(before)
    curate_here([str(raw)], str(tmp_path / "out"), CONFIG)
    assert states(raw) == WHOLE


@pytest.mark.parametrize(
    ("path", "number", "said"),
    beyond(
        1,
        [
            (".ledger/status.json", errno.ENOSPC, "the status of this run is not up to date: cannot write"),
            (".ledger/run.json", errno.EIO, "the report will not say how long this run took: cannot write"),
            ("report/", errno.ENOSPC, "the report is not up to date: cannot write"),
        ],
    ),
)
def test_what_only_tells_of_a_run_does_not_end_it(
    warm: Warm, raw: Path, path: str, number: int, said: str
) -> None:
    faults = FailingReads(raw.parent / "out" / path, number, raw.parent / "log", "n", None)
    status, printed = curate(warm, raw, faults)
    assert (status, faults.struck() > 0) == (0, True), printed
    assert printed.count(said) == 1
    assert os.strerror(number) in printed
    assert states(raw) == WHOLE
    assert curate(warm, raw)[0] == 0
    assert (raw.parent / "out/report/index.html").exists()


@dataclass(frozen=True)
class Killed(CutSource):
    """Is killed on one source, as the kernel kills where memory runs out, while a file says so."""

    def __call__(self, source: SourceRef) -> SourceSummary:
        if source.uri.endswith("b.mp4") and Path(source.uri).with_name("short").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(source)


@pytest.mark.parametrize("lasts", but([True], [True, False], []))
def test_a_killed_worker_leaves_its_source_undone_once(
    raw: Path, monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    monkeypatch.setattr("reelweave.curate.run.assembly.CutSource", Killed)
    out, run = str(raw.parent / "out"), {"runner": "sequential", "isolate": True, "attempts": 1}
    config = CurateConfig.model_validate({**CONFIG.model_dump(), "run": run})
    (raw / "short").touch()
    with pytest.raises(MachineError, match=r"1 of 3 sources.*b\.mp4.*SIGKILL.*memory runs out"):
        curate_here([str(raw)], out, config)
    if not lasts:
        (raw / "short").unlink()
    curate_here([str(raw)], out, config)
    assert states(raw) == WHOLE | ({"b.mp4": {"failed"}} if lasts else {})
    assert not list((raw.parent / "out/.ledger").glob("killed/*"))
    if lasts:
        failed = [row for row in open_dataset(out).accounting.to_pylist() if row["state"] == "failed"]
        assert "as the system kills where memory runs out" in failed[0]["reason"]


@thorough
def test_on_a_cluster_that_was_started_elsewhere_relative_inputs_are_found(
    ray_local: str, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(raw.parent)
    (raw / "b.txt").write_text("A boat on a lake.")
    config = CurateConfig.model_validate({**CONFIG.model_dump(), "run": {"runner": "ray"}})
    curate_here(["raw"], "out", config)
    assert states(raw) == WHOLE
    rows = open_dataset("out").index.to_pylist()
    assert {row["source"] for row in rows} == {f"raw/{name}.mp4" for name in NAMES}
    assert "A boat on a lake." in {row["caption"] for row in rows}


@pytest.fixture
def bucket(films: Path) -> Iterator[FaultyProxy]:
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "films")
        for path in films.iterdir():
            s3_client(endpoint).upload_file(str(path), "films", f"raw/{path.name}")
        yield proxy


def from_s3(bucket: FaultyProxy, raw: Path, **storage: object) -> dict[str, set[str]]:
    settings = {
        "endpoint_url": bucket.url,
        "max_attempts": 2,
        "backoff_base_s": 0.01,
        "block_mib": 1,
        **storage,
    }
    config = CurateConfig.model_validate({**CONFIG.model_dump(), "storage": settings})
    curate_here(["s3://films/raw"], str(raw.parent / "out"), config)
    return states(raw)


@pytest.mark.parametrize(("status", "code", "times"), [(503, "SlowDown", 2), (403, "AccessDenied", 1)])
def test_an_object_that_s3_does_not_give_is_left_undone(
    bucket: FaultyProxy, raw: Path, status: int, code: str, times: int
) -> None:
    bucket.answer(status, code, match="GET /films/raw/b.mp4", times=times)
    with pytest.raises(MachineError, match=r"1 of 3 sources are left undone.*s3://films/raw/b\.mp4"):
        from_s3(bucket, raw)
    assert from_s3(bucket, raw) == WHOLE


S3_PASSING = ["reset", "short", "500", "503 of the listing"]


@pytest.mark.parametrize("fault", but(S3_PASSING[:1], S3_PASSING, S3_PASSING[3:]))
def test_a_fault_of_s3_that_passes_costs_nothing(bucket: FaultyProxy, raw: Path, fault: str) -> None:
    if fault == "reset":
        bucket.reset(500, match="GET /films/raw/b.mp4")
    elif fault == "short":
        bucket.truncate(500, match="GET /films/raw/b.mp4")
    elif fault == "500":
        bucket.answer(500, "InternalError", match="GET /films/raw/b.mp4")
    else:
        bucket.answer(503, "SlowDown", match="GET /films?")
    assert from_s3(bucket, raw) == WHOLE


@thorough
def test_a_connection_to_s3_that_is_lost_for_long_leaves_its_object_undone(
    bucket: FaultyProxy, raw: Path
) -> None:
    bucket.reset(0, match="GET /films/raw/b.mp4", times=2)
    with pytest.raises(MachineError, match=r"1 of 3 sources are left undone.*s3://films/raw/b\.mp4"):
        from_s3(bucket, raw)
    assert from_s3(bucket, raw) == WHOLE


def test_a_store_is_asked_once_for_the_captions_beside_a_film(bucket: FaultyProxy, raw: Path) -> None:
    config = {**CONFIG.model_dump(), "storage": {"endpoint_url": bucket.url}, "spans": {"max_clip_s": 0.5}}
    config["spans"] |= {"min_clip_s": 0.2}
    curate_here(["s3://films/raw"], str(raw.parent / "out"), CurateConfig.model_validate(config))
    assert len(open_dataset(raw.parent / "out").accounting) > 2 * len(NAMES)
    assert len(bucket.lines(r"HEAD /films/raw/b\.txt")) == 1


@pytest.mark.parametrize(
    ("etag", "at"),
    but([(True, 9_000)], [(True, 9_000), (True, 40), (False, 40), (False, 9_000)], [(False, 40)]),
)
def test_bits_that_flip_on_the_way_from_s3_are_read_again(
    bucket: FaultyProxy, raw: Path, at: int, etag: bool
) -> None:
    """By the checksum that the store holds, or by its ETag where that is an MD5."""
    if etag:
        bucket.dropped = ("x-amz-checksum-crc32",)
    bucket.flip(at, match="GET /films/raw/b.mp4")
    assert from_s3(bucket, raw) == WHOLE
    assert len(bucket.lines("GET /films/raw/b.mp4")) >= 2
    hashes = {
        row["source"][-5:]: row["source_sha256"] for row in open_dataset(raw.parent / "out").index.to_pylist()
    }
    assert hashes["b.mp4"] == file_sha256(raw / "b.mp4")


@thorough
def test_an_etag_that_is_no_md5_fails_nothing(bucket: FaultyProxy, raw: Path) -> None:
    bucket.dropped = ("x-amz-checksum-crc32",)
    bucket.etags = {"/films/raw/b.mp4": '"0123456789abcdef0123456789abcdef"'}
    assert from_s3(bucket, raw) == WHOLE


def test_an_object_that_contradicts_its_checksum_is_left_undone(bucket: FaultyProxy, raw: Path) -> None:
    bucket.flip(9_000, match="GET /films/raw/b.mp4", times=100)
    with pytest.raises(
        MachineError, match=r"b\.mp4 arrived with other bytes than those of its checksum \(CRC32\)"
    ):
        from_s3(bucket, raw)


@nightly
def test_on_ray_too_a_fault_leaves_its_source_undone(raw: Path) -> None:
    """Ray's workers inherit the environment of the process that starts them."""
    faults = FailingReads(raw / "b.mp4", errno.EIO, raw.parent / "log", "ro", None)
    words = [
        sys.executable,
        "-m",
        "reelweave.pipelines.cli",
        "curate",
        str(raw),
        "--out",
        str(raw.parent / "out"),
    ]
    words += ["--set", "spans.min_clip_s=0.5", "--set", "filters.min_short_side_px=0"]
    words += ["--set", "filters.min_duration_s=0"]
    env = {**os.environ, "LD_PRELOAD": str(library()), **faults.env()}
    ended = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (ended.returncode, f"{raw}/b.mp4" in ended.stderr) == (os.EX_TEMPFAIL, True), ended.stderr
    assert faults.struck() > 0
    ended = subprocess.run(words, capture_output=True, text=True)
    assert (ended.returncode, states(raw)) == (0, WHOLE), ended.stderr
