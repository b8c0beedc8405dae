"""Runs on a real dataset: every way of making steps trains, and goes on after an interruption to the same end."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed.distributed_c10d import get_pg_count

from reelweave.loader.batch import Batch
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.errors import RunError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.pipelines.commands.train.train import train
from reelweave.pipelines.configuration.train_config import HeldOutConfig, TrainRunConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.logs.record import LOSSES
from reelweave.train.loop.logs.records import read_metrics
from reelweave.train.loop.loop import TrainResult
from reelweave.train.loop.trainer import Trainer
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.thorough import beyond, but, thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.ranks import Ranks

WAYS = {
    "step": {"microbatches": 3},
    "slot": {"microbatches": 2, "regime": "slot", "lookahead": 2},
    "pack": {"microbatches": 2, "regime": "pack"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("clips")
    clips = [
        (write_video(folder / f"{frames}.mp4", (frames,), size=size).read_bytes(), frames, size)
        for frames, size in ((6, (80, 64)), (10, (80, 64)), (7, (64, 80)))
    ]
    return open_dataset(write(folder / "set", [make_sample(f"key{n:02}", *clips[n % 3]) for n in range(15)]))


class Breaking(VideoStream):
    """Breaks off where a run has some steps behind its last checkpoint."""

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            if batch.step == 3:
                raise ConnectionError
            yield batch


CONFIG = tiny_config(total_steps=6, every_steps=2)
BUCKETS = BucketConfig(
    frames=(1, 5, 9),
    sizes=((16, 24), (24, 16)),
    compression=CONFIG.compression,
    max_text_tokens=9,
    memory_tokens=300,
)


def losses(dataset: Dataset, way: str, out: Path, *streams: type[VideoStream]) -> list[float | None]:
    settings = StreamConfig(buckets=BUCKETS, workers=2, **WAYS[way])
    for stream in streams:
        with suppress(ConnectionError):
            Trainer(CONFIG, stream(dataset, settings), out).run()
    return [metrics.loss for metrics in read_metrics(out, 6)]


@pytest.mark.parametrize("way", but(("pack",), WAYS))
def test_it_trains_and_goes_on_to_the_same_losses(dataset: Dataset, way: str, tmp_path: Path) -> None:
    whole = losses(dataset, way, tmp_path / "whole", VideoStream)
    assert len(whole) == 6
    assert all(loss is not None and 0 < loss < 10 for loss in whole)
    assert losses(dataset, way, tmp_path / "broken", Breaking)[2:] == pytest.approx(whole[2:3], rel=1e-5)
    assert losses(dataset, way, tmp_path / "broken", VideoStream) == pytest.approx(whole, rel=1e-5)


def test_a_run_whose_stream_ends_early_keeps_all_its_steps(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps behind its last checkpoint were lost, and made again by the next command."""
    config = tiny_config(total_steps=8, every_steps=1000)

    def run(out: Path, epochs: int) -> TrainResult:
        settings = StreamConfig(buckets=BUCKETS, workers=2, epochs=epochs, **WAYS["step"])
        return Trainer(config, VideoStream(dataset, settings), out).run()

    with pytest.raises(RunError, match="the stream ended before step"):
        run(tmp_path / "short", 1)
    ended = len(list(read_metrics(tmp_path / "short", 8)))
    assert 0 < ended < 8
    assert f"saved behind step {ended}, the last of the stream" in capsys.readouterr().err
    run(tmp_path / "short", 3)
    assert f"steps {ended} to 8" in capsys.readouterr().err
    run(tmp_path / "whole", 3)
    short, whole = ([line.loss for line in read_metrics(tmp_path / out, 8)] for out in ("short", "whole"))
    assert len(whole) == 8
    assert short == whole


@pytest.mark.parametrize("way", beyond(1, ["slot", "pack"]))
def test_every_clip_held_out_is_looked_at_once(dataset: Dataset, way: str, tmp_path: Path) -> None:
    config = TrainRunConfig(
        dataset=str(dataset.storage.root),
        out=tmp_path,
        stream=StreamConfig(buckets=BUCKETS, workers=2, **WAYS[way]),
        train=CONFIG,
        held_out=HeldOutConfig(dataset=str(dataset.storage.root), every_steps=3, steps=1000),
    )
    train(config)
    lines = [json.loads(line) for line in (tmp_path / LOSSES).read_text().splitlines()]
    assert [(line["step"], line["of"]) for line in lines] == [(3, "held_out"), (6, "held_out")]
    for line in lines:
        assert [part["samples"] for part in line["by_quantile"].values()] == [15] * 4
        assert line["by_bucket"].keys() == lines[0]["by_bucket"].keys()


def count_groups(dataset: str, out: str) -> None:
    """Train by the command on two pairs of tensor-parallel ranks, which read together; then on clips in memory."""
    config = tiny_config(total_steps=1).model_copy(update={"parallel": ParallelConfig(tp=2)})
    run = TrainRunConfig(
        dataset=dataset,
        out=Path(out) / "command",
        stream=StreamConfig(buckets=BUCKETS, workers=1),
        train=config,
    )
    with join("cpu"):
        before = get_pg_count()
        train(run)
        by_command = get_pg_count() - before
        Trainer(config, ClipStream(int(os.environ["RANK"]) // 2, 2), Path(out) / "memory").run()
        by_trainer = get_pg_count() - before - by_command
    # The thread that exchanges what describes samples has a group of its own: its order is not that of the others.
    assert by_command == by_trainer + 1 > 1


@thorough
def test_loader_and_trainer_share_their_process_groups(
    dataset: Dataset, tmp_path: Path, ranks: Ranks
) -> None:
    ended = ranks.run(count_groups, 4, str(dataset.storage.root), str(tmp_path))
    assert ended.codes == [0] * 4, ended.errors
