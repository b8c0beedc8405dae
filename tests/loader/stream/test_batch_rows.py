"""Rows of the index that come with a batch: those of its samples, whatever stands in for what, in any process."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from reelweave.loader import batch_rows
from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.batch import Microbatch
from reelweave.loader.batch_rows import BatchRows
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.dataset.tables.row_columns import ROW_SCHEMA, RowColumns
from reelweave.loader.errors import UsageError
from reelweave.loader.read.decode import decode
from reelweave.loader.stream.loaders.step_loader import StepLoader
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.blend.blend_datasets import blend_of
from tests.loader.stream_clips import SAMPLES, config, make_sample, small, write
from tests.media import write_video

NO_CLIP = b"not a video\n" * 400


def numbered(samples: list[Sample]) -> list[Sample]:
    """The samples, each with its number as a score, and a licence for every second one."""
    made = [Sample(dict(sample.row), sample.clip) for sample in samples]
    for number, sample in enumerate(made):
        sample.row["scores"] = {"number": float(number)} | ({"rare": 0.5} if number == 3 else {})
        sample.row["attributes"] = {"licence": "cc0"} if number % 2 else {}
    return made


@pytest.fixture
def described(samples: list[Sample], tmp_path: Path) -> Dataset:
    return open_dataset(write(tmp_path / "described", numbered(samples)))


def check(batch: Microbatch) -> None:
    rows = batch.rows
    assert rows.key == list(batch.keys)
    assert rows.dataset.tolist() == list(batch.datasets)
    assert rows.source == [f"raw/{key}.mp4" for key in batch.keys]
    numbers = [int(key.removeprefix("key")) for key in batch.keys]
    assert rows.score("number").tolist() == numbers
    assert [scores["number"] for scores in rows.scores] == numbers
    assert rows.attribute("licence") == ["cc0" if number % 2 else None for number in numbers]
    assert np.isnan(rows.score("rare")).tolist() == [number != 3 for number in numbers]
    assert rows.split == ["train"] * len(batch.keys)
    assert rows.fps.tolist() == [25.0] * len(batch.keys)
    np.testing.assert_allclose(rows.duration_s, rows.frames / 25)


@pytest.mark.parametrize("regime", ["step", "slot", "pack"])
def test_rows_are_those_of_the_samples(described: Dataset, regime: str) -> None:
    batches = list(VideoStream(described, config(regime=regime, microbatches=2, epochs=1)))
    assert sum(len(batch.keys) for batch in batches if batch.weight) == SAMPLES
    for batch in batches:
        check(batch)
        check(batch.to("cpu"))


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_worker_processes_send_rows(described: Dataset, context: str, workers: int) -> None:
    """A spawned one imports PyTorch, for 3 s."""
    stream = small(described)
    loader = DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=context)
    batches = list(loader)
    assert len(batches) == 2 * SAMPLES
    for batch in batches:
        check(batch)


def test_steps_have_rows(described: Dataset) -> None:
    for step in StepLoader(VideoStream(described, config(microbatches=2, epochs=1)), processes=1):
        for batch in step:
            check(batch)


def test_a_replacement_has_its_own_row(samples: list[Sample], tmp_path: Path) -> None:
    damaged = make_sample("key99", NO_CLIP, 12, (80, 64))
    damaged.row["scores"] = {"number": 99.0}
    dataset = open_dataset(write(tmp_path / "damaged", [*numbered(samples), damaged]))
    batches = list(VideoStream(dataset, config(epochs=1)))
    assert [bad.key for batch in batches for bad in batch.bad] == ["key99"]
    replaced = [batch for batch in batches if batch.bad]
    assert all(99.0 not in batch.rows.score("number") for batch in replaced)
    for batch in batches:
        assert batch.rows.source == [f"raw/{key}.mp4" for key in batch.keys]


def test_a_filler_names_the_sample_that_it_stands_for(samples: list[Sample], tmp_path: Path) -> None:
    damaged = make_sample("wide", NO_CLIP, 12, (128, 32))
    dataset = open_dataset(write(tmp_path / "lonely", [*samples, damaged]))
    buckets = config().buckets
    wide = buckets.model_copy(update={"sizes": (*buckets.sizes, (32, 128)), "max_crop": 0.3})
    [filler] = [batch for batch in VideoStream(dataset, config(buckets=wide, epochs=1)) if batch.bad]
    assert (filler.weight, filler.rows.source, filler.rows.width.tolist()) == (0, ["raw/wide.mp4"], [128])


def test_rows_of_a_blend_are_those_of_their_datasets(described: Dataset, tmp_path: Path) -> None:
    other = [make_sample(f"key{number:02}", NO_CLIP, 12, (80, 64)) for number in range(4)]
    for sample in other:
        sample.row["source"] = f"other/{sample.row['key']}"
    write(tmp_path / "other", other)
    nodes = [{"path": str(tmp_path / "described")}, {"path": str(tmp_path / "other")}]
    blend = blend_of(tmp_path / "blend.yaml", train={"blend_epochized": nodes})
    batches = list(VideoStream(blend, config(decode=False, epochs=1)))
    for batch in batches:
        pairs = zip(batch.datasets, batch.keys, strict=True)
        assert batch.rows.source == [
            f"other/{key}" if dataset else f"raw/{key}.mp4" for dataset, key in pairs
        ]
    assert sum(len(batch.keys) for batch in batches) == 21


def test_rows_are_read_where_a_stream_of_their_source_is(
    described: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = next(iter(VideoStream(described, config(epochs=1))))
    sent = pickle.dumps(batch.rows)
    assert len(sent) < 1000
    assert pickle.loads(sent).source == batch.rows.source
    monkeypatch.setattr(batch_rows, "_OPEN", WeakValueDictionary())  # as in another process
    with pytest.raises(UsageError, match="is read where the stream of the batch is"):
        _ = pickle.loads(sent).source


def test_a_stream_that_reads_no_rows_makes_no_file_of_them(described: Dataset, tmp_path: Path) -> None:
    described.node = NodeFiles(tmp_path / "node")
    batch = next(iter(VideoStream(described, config(epochs=1))))
    assert not list((tmp_path / "node").rglob("*.batches"))
    _ = batch.rows.fps, batch.rows.crop
    assert not list((tmp_path / "node").rglob("*.batches"))
    _ = batch.rows.source
    assert len(list((tmp_path / "node").rglob("*.batches"))) == 1


def test_the_crop_is_the_part_that_trains(tmp_path: Path) -> None:
    film = write_video(tmp_path / "a.mp4", (5,), size=(160, 96)).read_bytes()
    dataset = open_dataset(write(tmp_path / "set", [make_sample("a", film, 5, (160, 96))]))
    stream = VideoStream(dataset, config(buckets=config().buckets.model_copy(update={"max_text_tokens": 0})))
    batch = next(iter(stream))
    [[top, x, height, width]] = batch.rows.crop
    assert (batch.rows.height.tolist(), batch.rows.width.tolist()) == ([96], [160])
    assert (top, height) == (0, 96)
    np.testing.assert_allclose((x, width), (19.4, 119.6), atol=0.5)  # 13 and 80 of 107 columns
    # The same pixels as of the whole picture in the size that covers the bucket.
    covering = np.empty((3, 5, 64, 107), np.uint8)
    decode(film, np.arange(5), covering, upright=True)
    first = round(x * 107 / 160)
    torch.testing.assert_close(
        batch.video_BCTHW[0], torch.from_numpy(covering[..., first : first + 80].copy()), rtol=0, atol=2
    )


def test_columns_of_many_parts_are_taken_in_the_order_asked_for(tmp_path: Path) -> None:
    count = 10
    table = pa.table(
        {
            "key": [f"k{number}" for number in range(count)],
            "source": [f"s{number}" for number in range(count)],
            "split": ["train"] * count,
            "start_s": [0.0] * count,
            "end_s": [1.0] * count,
            "duration_s": [float(number) for number in range(count)],
            "attributes": [[("n", str(number))] for number in range(count)],
            "scores": [[("n", float(number))] for number in range(count)],
        },
        schema=ROW_SCHEMA,
    )
    calls = []

    def parts(columns: object) -> Iterator[pa.Table]:
        calls.append(columns)
        for first in range(0, count, 3):
            yield table.slice(first, 3)

    for folder in (NodeFiles(tmp_path), NodeFiles(tmp_path), NodeFiles(Path("/proc/none"))):
        columns = RowColumns(folder, "name", parts)
        taken = columns.take(np.array([7, 0, 9, 0, 3]))
        assert taken["source"].to_pylist() == ["s7", "s0", "s9", "s0", "s3"]
        assert taken["scores"].to_pylist() == [[("n", float(number))] for number in (7, 0, 9, 0, 3)]
        assert len(columns.take(np.zeros(0, np.int64))) == 0
    assert len(calls) == 2  # once into the folder, and once without one


def test_rows_of_upscaled_clips_lie_within_them() -> None:
    class Source:
        fingerprint = "0"

        class plan_index:  # noqa: N801
            height, width = np.array([30, 480]), np.array([50, 270])

    buckets = (Bucket(5, 64, 80), Bucket(5, 64, 80))
    crop = BatchRows(Source(), np.array([0, 1]), buckets).crop  # type: ignore[arg-type]
    assert (crop >= 0).all()
    assert (crop[:, 0] + crop[:, 2] <= [30, 480]).all()
    assert (crop[:, 1] + crop[:, 3] <= np.array([50, 270]) + 1e-9).all()
