"""Datasets of foreign tars in use: streamed, on S3, indexed under kills and in little memory."""

import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.dataset.tars.tar_scan import TarScan
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.loader.stream.video_stream import StreamConfig, VideoStream
from tests.commands import reelweave
from tests.curate.foreign.foreign_sets import clips, failed, index, mixed_set
from tests.energon import energon_samples
from tests.foreign_tars import by_tarfile, by_webdataset, video
from tests.media import read_number
from tests.s3server import FaultyProxy, make_bucket, s3_client, s3_server
from tests.thorough import nightly, thorough
from tests.warm import Warm


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


@pytest.fixture
def mixed(tmp_path: Path, raw: Path) -> Path:
    return mixed_set(tmp_path / "set", raw)


@thorough
def test_a_video_that_kills_its_reader_is_left_out(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_webdataset(tmp_path / "set/a.tar", clips(raw, 0, 4))
    by_webdataset(tmp_path / "set/b.tar", clips(raw, 10, 2))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'reelweave.curate.frames.child_process' in sys.orig_argv:\n"
        "    import reelweave.curate.foreign.tar as module\n"
        "    described = module._describe_sample\n"
        "    def deadly(region, members):\n"
        "        if b'two words 2' in region:\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return described(region, members)\n"
        "    module._describe_sample = deadly\n"
    )
    paths = [str(tmp_path), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
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


@thorough
def test_energon_opens_the_folder_and_leaves_out_what_failed(mixed: Path) -> None:
    index(mixed)
    dataset = open_dataset(mixed)
    expected = {(row["key"], len(dataset.read_media(n))) for n, row in enumerate(to_rows(dataset.index))}
    assert set(energon_samples(mixed, 27)) == expected


def test_the_commands_work_on_it(mixed: Path) -> None:
    done = reelweave("index", mixed, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["samples"], told["tars_read"]) == (8, 3)
    assert "3/3" in done.stderr
    verified = reelweave("verify", mixed)
    assert verified.returncode == 0
    assert "pictures are not decoded here" in verified.stdout
    done = reelweave("report", mixed, "--set", "buckets.sizes=[[64, 96]]")
    assert done.returncode == 0, done.stderr
    assert len(list((mixed / "report/pictures").glob("*.jpg"))) == 8
    assert reelweave("index", mixed, "--workers", "0").returncode == 2
    assert reelweave("index", mixed / "nowhere").returncode == 2
    assert reelweave("verify", mixed).returncode == 0


def test_a_list_of_keys_leaves_an_index_in_mid_epoch(tmp_path: Path, raw: Path) -> None:
    folder, listed = tmp_path / "set", tmp_path / "keys.txt"
    by_webdataset(folder / "0.tar", clips(raw, 0, 9))
    index(folder)
    config = StreamConfig(
        buckets=BUCKETS.model_copy(update={"max_batch": 2}), epochs=2, workers=1, decode=False
    )
    stream = VideoStream(open_dataset(folder), config)
    reads = iter(stream)
    before = [key for batch in (next(reads), next(reads)) for key in batch.keys]
    reads.close()
    gone = sorted({f"clip{number:04d}" for number in range(9)} - set(before))[:2] + before[:1]
    listed.write_text("\n".join([*gone, "nobody"]))
    done = reelweave("remove", folder, "--keys", listed, "--reason", "damaged", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["samples_removed"], told["samples_left"], told["tars_keep_bytes"]) == (3, 6, True)
    assert (told["unknown_keys"], told["shards_rewritten"]) == (["nobody"], 0)
    resumed = VideoStream(open_dataset(folder), config)
    resumed.load_state_dict(stream.state_dict())
    batches = [batch for batch in resumed if batch.weight]
    drawn = sorted([*before, *(key for batch in batches if batch.epoch == 0 for key in batch.keys)])
    every = {f"clip{number:04d}" for number in range(9)}
    assert drawn == sorted(every - set(gone[:2]))  # each once; of the removed those that were trained before
    assert sorted(key for batch in batches if batch.epoch for key in batch.keys) == sorted(every - set(gone))
    assert reelweave("remove", folder, "--keys", tmp_path / "none.txt").returncode == 2
    assert "bytes of these samples remain" in reelweave("remove", folder, "--keys", listed).stdout


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        make_bucket(url, "tars")
        yield url


def upload(endpoint: str, prefix: str, folder: Path) -> None:
    for path in folder.rglob("*.tar"):
        key = f"{prefix}/{path.relative_to(folder)}"
        s3_client(endpoint).put_object(Bucket="tars", Key=key, Body=path.read_bytes())


@thorough
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


@nightly
def test_a_killed_run_goes_on_and_reads_no_finished_tar_again(
    tmp_path: Path, raw: Path, endpoint: str, warm: Warm
) -> None:
    for number in range(8):
        by_webdataset(tmp_path / f"set/{number}.tar", clips(raw, 10 * number, 3))
    upload(endpoint, "killed", tmp_path / "set")
    with FaultyProxy(endpoint) as proxy:
        proxy.reset(0, r"^PUT .*/2\.tar\.parquet", then=lambda: os.killpg(running.pid, signal.SIGKILL))
        words = ("s3://tars/killed", "--workers", "1", "--endpoint-url", proxy.url)
        aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        running = warm.start("index", *words, env=aws)
        assert running.ended()[0] == -signal.SIGKILL
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
