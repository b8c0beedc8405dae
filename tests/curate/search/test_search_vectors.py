"""Embeddings are read with few requests, and a damaged one is named as if it were read alone."""

from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.search.vectors import MEMBER, stored_vectors
from reelweave.loader.dataset import Dataset, DatasetWriter, Sample, open_dataset
from reelweave.loader.dataset.tars.joined import joined_members
from reelweave.loader.dataset.tars.members import Members
from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, open_storage
from tests.loader.stream_clips import make_sample
from tests.s3server import FaultyProxy, make_bucket, s3_server

CLIPS, LARGE = 60, 20
_MOST = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards; the clip of one sample is larger than what is read for nothing."""
    at = tmp_path_factory.mktemp("set")
    drawn = np.random.default_rng(3)
    with DatasetWriter(open_storage(at), max_shard_bytes=500_000) as writer:
        for number in range(CLIPS):
            one = make_sample(f"{number:04}", bytes(400_000 if number == LARGE else 900), 9, (80, 64))
            vector = drawn.standard_normal(16).astype(np.float16)
            writer.add(Sample(one.row, one.clip, {} if number == 5 else {MEMBER: vector}))
    return at


def members_of(dataset: Dataset) -> Members:
    return dataset.members(MEMBER)


def test_neighbours_come_by_one_request(folder: Path) -> None:
    dataset = open_dataset(folder)
    rows = members_of(dataset).rows()
    drawn = np.random.default_rng(0).permutation(rows)
    expected = stored_vectors(dataset, drawn, _MOST)
    shards = {members_of(dataset).shards[one] for one in members_of(dataset).shard[rows].tolist()}
    with s3_server() as endpoint:
        make_bucket(endpoint, "vectors")
        storage = open_storage("s3://vectors/set", StorageConfig(endpoint_url=endpoint))
        for path in (path for path in folder.rglob("*") if path.is_file()):
            storage.write(str(path.relative_to(folder)), path.read_bytes())
        with FaultyProxy(endpoint) as proxy:
            remote = open_dataset("s3://vectors/set", StorageConfig(endpoint_url=proxy.url))
            assert np.array_equal(stored_vectors(remote, drawn, _MOST), expected)
            asked = proxy.lines(r"^GET .*\.tar")
    # The first one tells their size; the large clip parts its shard.
    assert len(asked) == 1 + len(shards) + 1


def test_a_damaged_one_is_named(folder: Path, tmp_path: Path) -> None:
    for path in (path for path in folder.rglob("*") if path.is_file()):
        (tmp_path / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.relative_to(folder)).write_bytes(path.read_bytes())
    dataset = open_dataset(tmp_path)
    rows = members_of(dataset).rows()
    shard, offset, _ = members_of(dataset).place(int(rows[9])) or ("", 0, 0)
    with (tmp_path / shard).open("r+b") as file:
        file.seek(offset)
        file.write(b"no vector")
    with pytest.raises(RunError, match=rf"{dataset.row(int(rows[9]))['key']}\.video\.npy is no vector"):
        stored_vectors(dataset, rows, _MOST)
    with (tmp_path / shard).open("r+b") as file:
        file.truncate(offset)
    with pytest.raises(RunError, match=r"cut off"):
        stored_vectors(dataset, rows, _MOST)
    (tmp_path / shard).unlink()
    with pytest.raises(RunError, match="is missing"):
        stored_vectors(dataset, rows, _MOST)


@pytest.mark.parametrize(
    ("gap", "most", "expected"),
    [
        (0, 100, [[3], [1], [0], [2]]),
        (10, 100, [[3, 1], [0], [2]]),
        (90, 1000, [[3, 1, 0], [2]]),
        (90, 30, [[3, 1], [0], [2]]),
    ],
)
def test_gaps_and_bytes_bound_a_request(gap: int, most: int, expected: list[list[int]]) -> None:
    shard, offset = np.array([0, 0, 1, 0], np.int32), np.array([100, 20, 120, 0], np.int64)
    members = Members(("a", "b"), shard, offset, np.array([10, 10, 10, 10], np.int64))
    found = joined_members(members, np.arange(4), gap, most)
    assert [places.tolist() for places in found] == expected
    assert list(joined_members(members, np.zeros(0, np.int64), gap, most)) == []
