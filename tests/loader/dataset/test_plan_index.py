"""The plan index says what the index says, in columns that need no parsing, or is refused in words."""

import hashlib
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from reelweave.curate.takedown.removal import remove
from reelweave.loader.buckets.assignment import assign
from reelweave.loader.dataset import (
    Removal,
    open_dataset,
    publish,
    write_shard,
)
from reelweave.loader.dataset import plan_index as plan_index_module
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.dataset.plan_index import PLANNED, PlanIndex, from_index, to_arrow
from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, open_storage
from tests.loader.buckets.test_buckets import config
from tests.loader.dataset.test_dataset import make_sample, problems, tree, write
from tests.loader.dataset.test_revisions import accounted
from tests.loader.samples import plan_index
from tests.s3server import FaultyProxy, make_bucket, s3_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "dataset", [make_sample(number) for number in range(7)])


def columns(index: PlanIndex) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in index.columns().items()}


def rewritten(folder: Path, change: dict[str, object]) -> None:
    """The manifest again, with other values and a right checksum of its own."""
    manifest = open_dataset(folder).manifest
    (folder / MANIFEST).write_bytes(manifest.model_copy(update=change).to_bytes())


def exchanged(folder: Path, data: bytes) -> None:
    """Another plan index, which the manifest vouches for."""
    (folder / "plan.arrow").write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    files = open_dataset(folder).manifest.files
    rewritten(
        folder,
        {"files": [file.model_copy(update=entry) if file.path == "plan.arrow" else file for file in files]},
    )


def without_plan_index(folder: Path) -> None:
    (folder / "plan.arrow").unlink()
    files = open_dataset(folder).manifest.files
    rewritten(folder, {"files": [file for file in files if file.path != "plan.arrow"]})


def test_it_holds_what_the_index_and_the_shards_hold(folder: Path) -> None:
    dataset = open_dataset(folder)
    index, shards = dataset.plan_index, dataset.manifest.shards
    assert len(index) == dataset.index.num_rows == 7
    assert len(shards) > 1
    for name in ("frames", "fps", "height", "width", "text_tokens", "offset", "size"):
        assert getattr(index, name).tolist() == dataset.index.column(name).to_pylist()
    assert [shards[place].path for place in index.shard] == dataset.index.column("shard").to_pylist()
    for row in range(7):
        region = dataset.storage.read(
            shards[index.shard[row]].path, int(index.offset[row]), int(index.size[row])
        )
        assert zlib.crc32(region) == index.crc32[row]


def test_a_sample_takes_less_than_40_bytes() -> None:
    count = 100_000
    index = plan_index(np.full(count, 25), 480, 832)
    assert len(to_arrow(replace(index, crc32=np.zeros(count, np.uint32)))) < 40 * count


def test_it_is_mapped_and_not_loaded(folder: Path) -> None:
    index = open_dataset(folder).plan_index
    assert not any(values.flags.owndata or values.flags.writeable for values in index.columns().values())
    assert str(folder / "plan.arrow") in Path("/proc/self/maps").read_text()


def test_plans_and_buckets_read_no_table(folder: Path) -> None:
    (folder / "index.parquet").unlink()
    assert len(assign(open_dataset(folder).plan_index, config()).bucket_of) == 7


def test_the_same_columns_give_the_same_bytes(folder: Path) -> None:
    index = open_dataset(folder).plan_index
    assert to_arrow(index) == (folder / "plan.arrow").read_bytes()


@pytest.mark.parametrize("place", [0, 300, 0.5, -1])
def test_a_flipped_byte_is_found_and_the_file_named(folder: Path, place: float) -> None:
    data = bytearray((folder / "plan.arrow").read_bytes())
    data[int(place * len(data)) if isinstance(place, float) else place] ^= 16
    (folder / "plan.arrow").write_bytes(data)
    with pytest.raises(RunError, match=r"plan\.arrow is damaged"):
        _ = open_dataset(folder).plan_index
    assert problems(folder) == ["plan.arrow is damaged: its checksum is not the manifest's"]


@pytest.mark.parametrize("kept", [0, 1000])
def test_a_cut_off_file_is_found(folder: Path, kept: int) -> None:
    (folder / "plan.arrow").write_bytes((folder / "plan.arrow").read_bytes()[:kept])
    with pytest.raises(RunError, match=r"plan\.arrow is damaged"):
        _ = open_dataset(folder).plan_index


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "plan.arrow").unlink()
    with pytest.raises(RunError, match=r"plan\.arrow is missing"):
        _ = open_dataset(folder).plan_index
    [said] = problems(folder)
    assert "plan.arrow is missing" in said


def arrow(batch: pa.RecordBatch, batches: int = 1, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def whole(folder: Path) -> pa.RecordBatch:
    return pa.ipc.open_file(pa.py_buffer((folder / "plan.arrow").read_bytes())).get_batch(0)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda _: b"no arrow file at all, but long enough to have been one", "is no plan index"),
        (lambda batch: arrow(batch.select(["frames", "fps"])), "has other columns"),
        (lambda batch: arrow(batch, batches=2), "it holds 2 record batches"),
        (lambda batch: arrow(batch.slice(1)), r"has 6 samples, manifest\.json counts 7"),
        (lambda batch: arrow(batch)[:-200], "is no plan index"),
        (lambda batch: arrow(batch) + bytes(100_000), "more than a plan index of 7 samples takes"),
    ],
)
def test_what_is_no_plan_index_is_refused_whatever_its_checksum(
    folder: Path, made: object, words: str
) -> None:
    exchanged(folder, made(whole(folder)))
    with pytest.raises(RunError, match=words):
        _ = open_dataset(folder).plan_index


def test_one_that_disagrees_with_the_index_is_found(folder: Path) -> None:
    index = open_dataset(folder).plan_index
    exchanged(folder, to_arrow(replace(index, frames=index.frames + np.int32(1))))
    assert problems(folder) == ["plan.arrow does not hold what index.parquet says: frames"]


def test_a_crc32_that_is_not_the_samples_is_found(folder: Path) -> None:
    dataset = open_dataset(folder)
    crc32 = dataset.plan_index.crc32.copy()
    crc32[3] ^= 1
    exchanged(folder, to_arrow(replace(dataset.plan_index, crc32=crc32)))
    [problem] = problems(folder)
    assert "crc32" in problem
    assert dataset.row(3)["key"] in problem


def test_a_dataset_without_one_still_opens(folder: Path) -> None:
    expected = columns(open_dataset(folder).plan_index)
    without_plan_index(folder)
    index = open_dataset(folder).plan_index
    assert index.crc32 is None
    assert columns(index) == {name: expected[name] for name in PLANNED}
    assert problems(folder) == []


def test_a_dataset_without_one_gets_one_with_its_next_revision(folder: Path) -> None:
    without_plan_index(folder)
    remove(open_storage(folder), Removal(key=make_sample(2).row["key"], date="", reason="", samples=0))
    index = open_dataset(folder).plan_index
    assert (folder / "plan.000001.arrow").exists()
    assert (len(index), index.crc32) == (6, None)  # shards that stay are not read for it
    assert problems(folder) == []


def test_it_changes_with_the_dataset(folder: Path) -> None:
    before = open_dataset(folder)
    old = columns(before.plan_index)
    gone = before.row_numbers[make_sample(2).row["key"]]
    remove(open_storage(folder), Removal(key=make_sample(2).row["key"], date="", reason="", samples=0))
    after = open_dataset(folder)
    assert after.manifest.plan_index is not None
    assert after.manifest.plan_index.path == "plan.000001.arrow"
    assert (folder / "plan.arrow").read_bytes() == (folder / "plan.000001.arrow").read_bytes()
    new = columns(after.plan_index)
    for name in ("frames", "fps", "height", "width", "text_tokens", "size", "crc32"):
        assert new[name] == [value for row, value in enumerate(old[name]) if row != gone]
    assert columns(before.plan_index) == old  # a reader of the old revision keeps it
    assert problems(folder) == []


def test_a_revision_read_back_and_published_again_is_the_same(folder: Path, tmp_path: Path) -> None:
    shards = open_dataset(folder).shards()
    storage = open_storage(tmp_path / "again")
    for path, data in tree(folder).items():
        if path.startswith("shards/"):
            storage.write(path, data)
    publish(storage, shards, accounted(shards))
    assert storage.read("plan.arrow") == (folder / "plan.arrow").read_bytes()


@pytest.mark.parametrize(
    ("column", "value"), [("height", 65_536), ("width", 70_000), ("size", 2**32), ("height", -1)]
)
def test_a_value_too_large_is_refused_by_row_and_name(folder: Path, column: str, value: int) -> None:
    index = open_dataset(folder).index
    values = index.column(column).to_pylist()
    values[4] = value
    place = index.schema.get_field_index(column)
    changed = index.set_column(
        place, index.schema.field(place), pa.array(values, index.schema.field(place).type)
    )
    shards = sorted(set(index.column("shard").to_pylist()))
    with pytest.raises(RunError, match=f"row 4 of index.parquet has {column} {value}"):
        from_index(changed, shards)


def test_a_shard_the_manifest_does_not_list_is_named(folder: Path) -> None:
    with pytest.raises(RunError, match=r"shards/00000[02]-\w+\.tar, which manifest\.json does not list"):
        from_index(open_dataset(folder).index, [open_dataset(folder).shards()[1].path])


def test_a_sample_too_large_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = make_sample(1)
    monkeypatch.setattr("reelweave.loader.dataset.shard.MAX_SAMPLE_BYTES", len(sample.clip))
    with pytest.raises(RunError, match=rf"{sample.row['key']}\..* cut shorter clips"):
        write_shard(open_storage(tmp_path), 0, [sample])
    assert tree(tmp_path) == {}


def test_an_empty_dataset_has_an_empty_one(tmp_path: Path) -> None:
    index = open_dataset(write(tmp_path / "dataset", [])).plan_index
    assert len(index) == 0
    assert len(assign(index, config()).bucket_of) == 0
    assert problems(tmp_path / "dataset") == []


def test_from_s3_it_comes_in_several_ranges_and_survives_faults(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_index_module, "_PART_BYTES", 500)
    expected = open_dataset(folder)
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "lake")
        remote = StorageConfig(endpoint_url=proxy.url, backoff_base_s=0.001, node_folder=tmp_path / "one")
        storage = open_storage("s3://lake/dataset", remote)
        for path, data in tree(folder).items():
            storage.write(path, data)
        proxy.answer(503, "SlowDown", match="GET .*plan.arrow")
        proxy.truncate(100, match="GET .*plan.arrow")
        index = open_dataset("s3://lake/dataset", remote).plan_index
        assert columns(index) == columns(expected.plan_index)
        assert len(proxy.lines("GET .*plan.arrow")) > 5
        storage.write("plan.arrow", bytes((folder / "plan.arrow").stat().st_size))
        assert columns(open_dataset("s3://lake/dataset", remote).plan_index) == columns(expected.plan_index)
        remote = remote.model_copy(update={"node_folder": tmp_path / "another"})
        with pytest.raises(RunError, match=r"s3://lake/dataset/plan\.arrow is damaged"):
            _ = open_dataset("s3://lake/dataset", remote).plan_index
        storage.delete("plan.arrow")
        with pytest.raises(RunError, match=r"s3://lake/dataset/plan\.arrow is missing"):
            _ = open_dataset("s3://lake/dataset", remote).plan_index
