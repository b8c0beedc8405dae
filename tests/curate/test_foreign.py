"""Tars that somebody else wrote become a dataset, and stay as they are."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from curate.config import CurateConfig
from curate.foreign.run import Indexed, index_tars
from curate.removal import remove
from curate.run import curate
from loader.buckets import BucketConfig
from loader.dataset import Removal, open_dataset, verify
from loader.dataset.tables import to_rows
from loader.dataset.tar_scan import TarScan
from loader.errors import RunError, UsageError
from loader.storage import StorageConfig, open_storage
from loader.stream import StreamConfig, VideoStream
from loader.tokens import Compression
from tests.energon import energon_samples
from tests.foreign_tars import by_tarfile, by_webdataset, picture, video
from tests.loader.test_dataset import write as write_dataset
from tests.media import read_number, write_video
from tests.s3server import FaultyProxy, make_bucket, s3_client, s3_server

WORKERS = 1  # a process takes a second to start


def index(folder: object, **options: object) -> Indexed:
    return index_tars(str(folder), **{"workers": WORKERS, **options})


def clips(folder: Path, first: int, count: int, frames: int = 12) -> list[tuple[str, dict[str, bytes]]]:
    return [
        (f"clip{number:04d}", {"mp4": video(folder, number, frames), "txt": f"two words {number}".encode()})
        for number in range(first, first + count)
    ]


def problems(folder: Path) -> list[str]:
    return verify(open_storage(folder)).problems


def failed(folder: Path) -> dict[str, str]:
    rows = to_rows(open_dataset(folder).accounting)
    return {row["source"]: row["reason"] for row in rows if row["state"] == "failed"}


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


@pytest.fixture
def mixed(tmp_path: Path, raw: Path) -> Path:
    """Videos and pictures by three writers, in sub folders, beside files that are no tars."""
    folder = tmp_path / "set"
    by_webdataset(folder / "a/000.tar", clips(raw, 0, 3))
    pictures = [
        (
            f"{'long folder/' * 14}p{number}",
            {"jpg": picture(number), "json": json.dumps({"prompt": f"picture {number}"}).encode()},
        )
        for number in range(3)
    ]
    by_tarfile(folder / "b/images 1.tar", pictures, tarfile.PAX_FORMAT, folders=True)
    others = [
        ("x/webm", {"webm": video(raw, 50, 10, "webm"), "JSON": b'{"text": "spoken"}', "txt": b" \n"}),
        ("x/both", {"png": picture(9, "png"), "mp4": video(raw, 51, 7)}),
        ("x/broken", {"mp4": b"junk" * 100, "txt": b"x"}),
        ("x/text", {"txt": b"alone"}),
        ("clip0001", {"mp4": video(raw, 52)}),
    ]
    by_tarfile(folder / "shards/other.tar", others, tarfile.GNU_FORMAT)
    (folder / "shards/readme.md").write_text("theirs")
    (folder / "index.json").write_text("{}")
    (folder / "scores.csv").write_text("theirs")
    return folder


def test_every_sample_is_in_the_index_or_in_the_accounting(mixed: Path) -> None:
    before = digests(mixed)
    done = index(mixed)
    assert {path: state for path, state in digests(mixed).items() if path in before} == before
    dataset = open_dataset(mixed)
    rows = {row["key"]: row for row in to_rows(dataset.index)}
    folder = "long folder/" * 14
    assert sorted(rows) == sorted(
        [
            "clip0000",
            "clip0001",
            "clip0002",
            "x/both",
            "x/webm",
            *(f"{folder}p{number}" for number in range(3)),
        ]
    )
    assert rows["clip0001"]["shard"] == "a/000.tar"
    assert (rows["clip0001"]["frames"], rows["clip0001"]["fps"]) == (12, 25.0)
    assert (rows["clip0001"]["caption"], rows["clip0001"]["text_tokens"]) == ("two words 1", 3)
    assert (rows["x/webm"]["caption"], rows["x/webm"]["caption_source"]) == ("spoken", "member:json")
    assert (rows["x/both"]["frames"], rows["x/both"]["caption_source"]) == (7, "none")
    assert rows[f"{folder}p2"]["caption"] == "picture 2"
    assert rows[f"{folder}p2"]["frames"] == 1
    reasons = failed(mixed)
    assert {source.split(" at byte ")[0] for source in reasons} == {
        f"shards/other.tar/{key}" for key in ("x/broken", "x/text", "clip0001")
    }
    assert done.manifest.totals.accounting == {"kept": 8, "filtered": 0, "duplicate": 0, "failed": 3}
    assert problems(mixed) == []
    for number, row in enumerate(to_rows(dataset.index)):
        assert hashlib.sha256(dataset.read_media(number)).hexdigest() == row["sha256"]


def test_damage_is_found_and_a_damaged_sample_named(mixed: Path) -> None:
    index(mixed)
    dataset = open_dataset(mixed)
    row = dataset.row(dataset.row_numbers["x/webm"])
    path = mixed / row["shard"]
    whole = path.read_bytes()
    for place in (row["offset"] + 3, row["offset"] + row["size"] // 2, row["offset"] - 100, len(whole) - 5):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        found = problems(mixed)
        assert len(found) == 1
        assert row["shard"] in found[0]
        assert ("x/webm" in found[0]) == (row["offset"] <= place < row["offset"] + row["size"])


def test_an_unchanged_folder_is_not_read_again(mixed: Path) -> None:
    first = index(mixed)
    before = digests(mixed)
    again = index(mixed)
    assert (first.tars_read, again.tars_read) == (3, 0)
    assert again.manifest == first.manifest
    assert digests(mixed) == before


def test_new_and_changed_tars_alone_are_read_and_make_a_revision(mixed: Path, raw: Path) -> None:
    index(mixed)
    by_webdataset(mixed / "a/000.tar", clips(raw, 0, 2))
    by_webdataset(mixed / "a/001.tar", clips(raw, 20, 2))
    done = index(mixed)
    assert (done.tars_read, done.manifest.revision) == (2, 1)
    keys = open_dataset(mixed).index.column("key").to_pylist()
    assert "clip0002" not in keys
    assert {"clip0020", "clip0021"} < set(keys)
    assert problems(mixed) == []
    assert not (mixed / "index.parquet").exists()
    assert {"index.json", "scores.csv", "shards/readme.md", "shards/other.tar"} < digests(mixed).keys()
    (mixed / "a/001.tar").unlink()
    assert index(mixed).tars_read == 0
    assert problems(mixed) == []


def test_a_cut_tar_is_named_and_its_readable_samples_are_kept(tmp_path: Path, raw: Path) -> None:
    folder = tmp_path / "set"
    path = by_webdataset(folder / "cut.tar", clips(raw, 0, 4))
    by_webdataset(folder / "whole.tar", clips(raw, 10, 1))
    with path.open("rb") as file:
        third = list(TarScan(file))[2]
    path.write_bytes(path.read_bytes()[: third.offset + third.size // 2])
    done = index(folder)
    assert [note.split(" ")[0] for note in done.notes] == [str(path)]
    keys = open_dataset(folder).index.column("key").to_pylist()
    assert keys == ["clip0000", "clip0001", "clip0010"]
    assert sorted(source.split(" at ")[0] for source in failed(folder)) == ["cut.tar", "cut.tar/clip0002"]
    assert problems(folder) == []


def test_tars_of_our_own_writer_give_the_same_places(tmp_path: Path) -> None:
    from tests.loader.stream_clips import make_sample

    made = [
        make_sample(f"key{number}", video(tmp_path / "raw", number, 9), 9, (96, 64)) for number in range(5)
    ]
    ours = write_dataset(tmp_path / "ours", made)
    folder = tmp_path / "theirs"
    (folder / "shards").mkdir(parents=True)
    for path in ours.glob("shards/*.tar"):
        (folder / "shards" / path.name).write_bytes(path.read_bytes())
    index(folder)
    assert problems(folder) == []
    columns = ["key", "shard", "offset", "size", "members", "frames", "height", "width", "sha256", "caption"]
    assert open_dataset(folder).index.select(columns).equals(open_dataset(ours).index.select(columns))
    for path in ours.glob("shards/*.idx"):
        assert (folder / "shards" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["x.tar.gz", "sub/x.tgz"])
def test_packed_tars_are_refused(mixed: Path, name: str) -> None:
    (mixed / name).parent.mkdir(exist_ok=True)
    (mixed / name).write_bytes(b"\x1f\x8b")
    with pytest.raises(UsageError, match="packed"):
        index(mixed)
    assert index(mixed, shards="*.tar").tars_read == 3


def test_a_glob_chooses(mixed: Path) -> None:
    assert len(index(mixed, shards="a/*").manifest.shards) == 1
    with pytest.raises(UsageError, match="nothing"):
        index(mixed, shards="nothing*")


def test_nothing_usable_is_a_failure(tmp_path: Path) -> None:
    by_tarfile(tmp_path / "set/a.tar", [("a", {"txt": b"x"})])
    with pytest.raises(RunError, match=r"no video and no picture"):
        index(tmp_path / "set")
    assert not (tmp_path / "set/manifest.json").exists()


def test_files_of_others_are_not_replaced(mixed: Path) -> None:
    (mixed / "index.parquet").write_bytes(b"theirs")
    with pytest.raises(UsageError, match=r"index\.parquet"):
        index(mixed)
    (mixed / "index.parquet").unlink()
    (mixed / ".nv-meta").mkdir()
    (mixed / ".nv-meta/split.yaml").write_text("theirs")
    (mixed / "a/000.tar.idx").write_bytes(b"theirs")
    for _ in range(2):
        done = index(mixed)
        assert "a/000.tar.idx" in done.notes[0]
    assert sorted(path.name for path in (mixed / ".nv-meta").iterdir()) == ["split.yaml"]
    assert (mixed / "a/000.tar.idx").read_bytes() == b"theirs"
    assert problems(mixed) == []


def test_commands_that_write_tars_leave_them_alone(mixed: Path, raw: Path) -> None:
    write_video(raw / "source.mp4", (60,), size=(320, 192))
    config = CurateConfig.model_validate({"run": {"runner": "sequential"}})
    before = digests(mixed)
    with pytest.raises(UsageError, match="no curation wrote"):
        curate([str(raw / "source.mp4")], str(mixed), config)
    assert digests(mixed) == before
    index(mixed)
    before = digests(mixed)
    with pytest.raises(UsageError, match="no curation wrote"):
        curate([str(raw / "source.mp4")], str(mixed), config, update=True)
    removal = Removal(key="clip0001", date="2025-01-01", reason="asked", samples=0)
    with pytest.raises(UsageError, match="somebody else"):
        remove(open_storage(mixed), removal)
    assert digests(mixed) == before


def test_the_index_may_lie_elsewhere(mixed: Path, tmp_path: Path) -> None:
    before = digests(mixed)
    out = tmp_path / "index"
    index(mixed, out=str(out))
    assert digests(mixed) == before
    dataset = open_dataset(out)
    row = dataset.row(0)
    assert hashlib.sha256(dataset.read_media(0)).hexdigest() == row["sha256"]
    assert problems(out) == []
    assert index(mixed, out=str(out)).tars_read == 0


def test_a_video_that_kills_its_reader_is_left_out(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_webdataset(tmp_path / "set/a.tar", clips(raw, 0, 4))
    by_webdataset(tmp_path / "set/b.tar", clips(raw, 10, 2))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'curate.isolate' in sys.orig_argv:\n"
        "    import curate.foreign.tar as module\n"
        "    described = module._described\n"
        "    def deadly(region):\n"
        "        if b'two words 2' in region:\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return described(region)\n"
        "    module._described = deadly\n"
    )
    paths = [str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    index(tmp_path / "set")
    reasons = failed(tmp_path / "set")
    assert [source.split(" at ")[0] for source in reasons] == ["a.tar/clip0002"]
    assert "SIGSEGV" in next(iter(reasons.values()))
    assert open_dataset(tmp_path / "set").index.num_rows == 5


BUCKETS = BucketConfig(
    frames=(9,),
    sizes=((64, 96),),
    compression=Compression(frames=4, height=16, width=16, causal=True),
    max_text_tokens=12,
    memory_tokens=300,
)


def test_a_stream_shows_the_right_frames(tmp_path: Path, raw: Path) -> None:
    by_webdataset(tmp_path / "set/v/0.tar", clips(raw, 0, 4, frames=20))
    by_tarfile(tmp_path / "set/w/0.tar", clips(raw, 10, 3, frames=9))
    index(tmp_path / "set")
    stream = VideoStream(open_dataset(tmp_path / "set"), StreamConfig(buckets=BUCKETS, epochs=1, workers=1))
    seen: dict[str, str] = {}
    for batch in stream:
        for key, caption, video_CTHW in zip(batch.keys, batch.captions, batch.video_BCTHW, strict=True):
            numbers = [read_number(frame) for frame in video_CTHW.permute(1, 2, 3, 0).numpy()]
            assert numbers == list(range(numbers[0], numbers[0] + 9))
            seen[key] = caption
    assert seen == {f"clip{n:04d}": f"two words {n}" for n in (0, 1, 2, 3, 10, 11, 12)}


def test_energon_opens_the_folder_and_leaves_out_what_failed(mixed: Path) -> None:
    index(mixed)
    dataset = open_dataset(mixed)
    expected = {(row["key"], len(dataset.read_media(n))) for n, row in enumerate(to_rows(dataset.index))}
    assert set(energon_samples(mixed, 27)) == expected


def reelweave(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands_work_on_it(mixed: Path) -> None:
    done = reelweave("index", mixed, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["samples"], told["tars_read"]) == (8, 3)
    assert "3/3" in done.stderr
    assert reelweave("verify", mixed).returncode == 0
    done = reelweave("report", mixed, "--set", "buckets.sizes=[[64, 96]]")
    assert done.returncode == 0, done.stderr
    assert (mixed / "report/index.html").read_text().count("data:image/jpeg") == 8
    assert reelweave("index", mixed, "--workers", "0").returncode == 2
    assert reelweave("index", mixed / "nowhere").returncode == 2
    assert reelweave("verify", mixed).returncode == 0


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "tars")
        yield url


def upload(endpoint: str, prefix: str, folder: Path) -> None:
    for path in folder.rglob("*.tar"):
        key = f"{prefix}/{path.relative_to(folder)}"
        s3_client(endpoint).put_object(Bucket="tars", Key=key, Body=path.read_bytes())


def test_a_prefix_of_s3_is_read_once(mixed: Path, endpoint: str) -> None:
    upload(endpoint, "mixed", mixed)
    with FaultyProxy(endpoint) as proxy:
        config = StorageConfig(endpoint_url=proxy.url)
        done = index("s3://tars/mixed", config=config)
        assert done.tars_read == 3
        size = sum(path.stat().st_size for path in mixed.rglob("*.tar"))
        assert proxy.bytes_sent(r"^GET .*\.tar$") == size
        assert index("s3://tars/mixed", config=config).tars_read == 0
        assert proxy.bytes_sent(r"^GET .*\.tar$") == size
    dataset = open_dataset("s3://tars/mixed", StorageConfig(endpoint_url=endpoint))
    assert verify(dataset.storage).problems == []
    index(mixed)
    assert dataset.index.equals(open_dataset(mixed).index)


def test_a_killed_run_goes_on_and_reads_no_finished_tar_again(
    tmp_path: Path, raw: Path, endpoint: str
) -> None:
    for number in range(8):
        by_webdataset(tmp_path / f"set/{number}.tar", clips(raw, 10 * number, 3))
    upload(endpoint, "killed", tmp_path / "set")
    with FaultyProxy(endpoint) as proxy:
        command = [sys.executable, "-m", "pipelines.cli", "index", "s3://tars/killed", "--workers", "1"]
        proxy.reset(0, r"^PUT .*/2\.tar\.parquet", then=lambda: (running.kill(), running.wait()))
        running = subprocess.Popen([*command, "--endpoint-url", proxy.url], stderr=subprocess.DEVNULL)
        assert running.wait() == -signal.SIGKILL
    config = StorageConfig(endpoint_url=endpoint)
    storage = open_storage("s3://tars/killed", config)
    finished = {item.path for item in storage.list(".reelweave-index/") if item.path.endswith(".parquet")}
    assert {Path(path).name for path in finished} == {f"{number}.tar.parquet" for number in range(3)}
    assert storage.stat("manifest.json") is None
    with FaultyProxy(endpoint) as proxy:
        done = index("s3://tars/killed", config=StorageConfig(endpoint_url=proxy.url))
        read = {line.split("/")[-1] for line in proxy.lines(r"^GET .*\d\.tar$")}
    assert done.tars_read == 8 - len(finished)
    assert not {f".reelweave-index/{name}.parquet" for name in read} & finished
    assert len(read) == done.tars_read
    assert done.manifest.totals.samples == 24
    assert verify(storage).problems == []
    whole = index(tmp_path / "set").manifest
    assert whole.index_sha256 == done.manifest.index_sha256


def test_memory_does_not_grow_with_the_tar(tmp_path: Path, raw: Path) -> None:
    clip = video(raw, 1)
    large = by_tarfile(
        tmp_path / "x.tar", ((f"k{n}", {"mp4": clip, "bin": bytes(2_000_000)}) for n in range(60))
    )

    class Counting(io.FileIO):
        largest = 0

        def read(self, size: int = -1) -> bytes:
            Counting.largest = max(Counting.largest, size)
            return super().read(size)

    import tracemalloc

    with Counting(large) as file:
        tracemalloc.start()
        assert sum(1 for _ in TarScan(file)) == 60
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert Counting.largest <= 4 << 20
    assert peak < 16_000_000 < large.stat().st_size
