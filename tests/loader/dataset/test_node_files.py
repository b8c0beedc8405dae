"""What the processes of one machine make once: with real processes, kills and an S3 server."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.base.columns import JoinedColumn
from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.plan.shuffle import Shuffle
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.dataset.test_dataset import make_sample, tree, write
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import config
from tests.s3server import FaultyProxy, make_bucket, s3_server
from tests.thorough import beyond
from tests.train.ranks import Ranks

OPEN = """
import sys
from pathlib import Path
from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig
config = StorageConfig(endpoint_url=sys.argv[1], node_folder=Path(sys.argv[2]))
index = open_dataset("s3://lake/dataset", config).plan_index
maps = Path("/proc/self/maps").read_text()
print(int(index.size.sum()), ".plan.arrow" in maps)
"""
MAKE = """
import sys, time
from pathlib import Path
from reelweave.loader.base.shared.node_files import NodeFiles

def fill(path):
    path.write_text("half")
    print("begun", flush=True)
    time.sleep(60)

NodeFiles(Path(sys.argv[1])).file("name", fill)
"""


def started(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_of_a_machine_fetch_a_remote_index_once_and_map_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "dataset", [make_sample(number) for number in range(7)])
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "lake")
        storage = open_storage("s3://lake/dataset", StorageConfig(endpoint_url=endpoint))
        for path, data in tree(folder).items():
            storage.write(path, data)
        ranks = [started(OPEN, proxy.url, tmp_path / "node") for _ in range(2)]
        said = {rank.communicate(timeout=240)[0] for rank in ranks}
        assert said == {f"{int(open_dataset(folder).plan_index.size.sum())} True\n"}
        assert proxy.bytes_sent("GET .*plan.arrow") == (folder / "plan.arrow").stat().st_size
        [kept] = (tmp_path / "node").rglob("*.plan.arrow")
        kept.write_bytes(bytes(kept.stat().st_size))
        config = StorageConfig(endpoint_url=proxy.url, node_folder=tmp_path / "node")
        index = open_dataset("s3://lake/dataset", config).plan_index
        assert index.size.tolist() == open_dataset(folder).plan_index.size.tolist()
        (tmp_path / "a file").write_text("no folder")
        config = StorageConfig(endpoint_url=proxy.url, node_folder=tmp_path / "a file")
        index = open_dataset("s3://lake/dataset", config).plan_index
        assert index.size.tolist() == open_dataset(folder).plan_index.size.tolist()


def test_whoever_waits_for_a_process_that_is_killed_makes_the_file(tmp_path: Path) -> None:
    maker = started(MAKE, tmp_path)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "begun\n"
    waiter = started(MAKE.replace("time.sleep(60)", "path.write_text('whole')"), tmp_path)
    time.sleep(0.2)
    assert waiter.poll() is None
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=240)
    waiter.communicate(timeout=240)
    assert NodeFiles(tmp_path).file("name", lambda path: pytest.fail("it is there")).read_text() == "whole"


def test_arrays_come_back_as_they_were_made_and_read_only(tmp_path: Path) -> None:
    made = {
        "rows": np.arange(5, dtype=np.uint32),
        "none": np.empty(0, np.int64),
        "cost": np.array([0.5, np.inf]),
    }
    first, again = (NodeFiles(tmp_path).arrays("x", lambda: made) for _ in range(2))
    assert first.keys() == again.keys() == made.keys()
    for name, values in made.items():
        assert first[name].dtype == again[name].dtype == values.dtype
        assert first[name].tolist() == again[name].tolist() == values.tolist()
        assert not again[name].flags.writeable


def test_a_folder_of_others_and_a_failure_leave_nothing_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError

    node = NodeFiles(tmp_path)
    with pytest.raises(RuntimeError):
        node.file("name", fail)
    assert [path.name for path in node.folder.iterdir()] == ["name.lock"]
    node.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="only this user"):
        node.file("name", fail)
    for name in ("x", "y"):
        assert node.arrays(name, lambda: {"a": np.arange(3)})["a"].tolist() == [0, 1, 2]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"{node.folder} cannot be shared by the processes of this machine"
    ]
    assert [path.name for path in node.folder.iterdir()] == ["name.lock"]


def test_joined_columns_read_as_one_array() -> None:
    columns = [np.arange(4, dtype=np.int32), np.empty(0, np.int32), np.arange(10, 13, dtype=np.int32)]
    joined, expected = JoinedColumn(columns, [0, 5, 100]), np.array([0, 1, 2, 3, 110, 111, 112], np.int32)
    assert (len(joined), joined.dtype) == (7, np.int32)
    assert np.array_equal(np.asarray(joined), expected)
    for start in range(8):
        for stop in range(9):
            assert np.array_equal(joined[start:stop], expected[start:stop])
    places = np.random.default_rng(0).permutation(7)
    assert np.array_equal(joined[places], expected[places])
    assert [joined.item(place) for place in range(7)] == expected.tolist()
    with pytest.raises(IndexError):
        joined.item(7)


@pytest.mark.parametrize("shuffle", beyond(1, [Shuffle(order="permuted", run=2), Shuffle()]))
@pytest.mark.parametrize("regime", ["step", "slot", "pack"])
def test_ranks_that_share_plans_train_the_same_steps(
    dataset: Dataset, tmp_path: Path, shuffle: Shuffle, regime: str
) -> None:
    alone = config(decode=False, shuffle=shuffle, regime=regime, microbatches=2)
    shared = alone.model_copy(update={"node_folder": tmp_path})
    steps, state = run_steps(dataset, alone, 2, None, 3)
    same, same_state = run_steps(dataset, shared, 2, None, 3)
    assert ([[micro.keys for micro in step] for step in same], same_state) == (
        [[micro.keys for micro in step] for step in steps],
        state,
    )
    made = {path.name: path.stat().st_ino for path in tmp_path.rglob("*.arrays")}
    assert made
    # Another process finds all of it; and so does one that goes on in mid-epoch with another number of ranks.
    run_steps(dataset, shared, 2, None, 3)
    assert made.items() <= {path.name: path.stat().st_ino for path in tmp_path.rglob("*.arrays")}.items()
    rest, _ = run_steps(dataset, alone, 1, state, 10**4)
    again, _ = run_steps(dataset, shared, 1, state, 10**4)
    assert [[micro.keys for micro in step] for step in again] == [
        [micro.keys for micro in step] for step in rest
    ]


def read_all(dataset: str, folder: str, out: str) -> None:
    """Reads a rank's part of a dataset; notes the keys and the state behind them."""
    rank = int(os.environ["RANK"])
    settings = config(decode=False, node_folder=Path(folder), microbatches=3)
    stream = VideoStream(open_dataset(dataset), settings, rank, 2)
    Path(out, str(rank)).write_text(json.dumps([[micro.keys for micro in stream], stream.state_dict()]))


def test_real_ranks_that_start_together_train_what_they_would_alone(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, ranks: Ranks
) -> None:
    out = tmp_path_factory.mktemp("read")
    ended = ranks.run(read_all, 2, str(folder), str(tmp_path), str(out))
    assert ended.codes == [0, 0], ended.errors
    first, second = (json.loads((out / name).read_text()) for name in "01")
    alone = VideoStream(open_dataset(folder), config(decode=False, microbatches=3), 1, 2)
    assert second[0] == [list(micro.keys) for micro in alone]
    assert first[1] == second[1] == json.loads(json.dumps(alone.state_dict()))
    assert not [
        path.name for path in tmp_path.rglob("*") if path.suffix == ".lock" or path.name.startswith(".")
    ]
