"""Runs whose free ranks run pieces of late ones: every sample once in its step, and resumed with or without it."""

import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.logs.records import read_metrics
from reelweave.train.step.work_stealing import share_steps
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop.stealing_worlds import SHARED, train_shared
from tests.train.ranks import Ranks

IMPORTED_FIRST = ("tests.train.loop.stealing_worlds",)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    clip = write_video(folder / "clip.mp4", (10,), size=(80, 64)).read_bytes()
    write(folder / "set", [make_sample(f"key{n:02}", clip, 10, (80, 64)) for n in range(24)])
    return folder / "set"


def trained(out: Path, ranks: int, steps: range) -> list[dict[int, Counter]]:
    """Samples of each rank by step."""
    of_rank = []
    for rank in range(ranks):
        lines = map(json.loads, (out / f"ran-by-{rank}-of-{ranks}").read_text().splitlines())
        by_step: dict[int, Counter] = {step: Counter() for step in steps}
        for step, *sample in lines:
            if step in by_step:
                by_step[step][tuple(sample)] += 1
        of_rank.append(by_step)
    return of_rank


def test_free_ranks_run_the_pieces_of_a_slow_one_and_each_sample_counts_once(
    dataset: Path, tmp_path: Path, ranks: Ranks
) -> None:
    for name, steals in (("shared", True), ("alone", False)):
        ended = ranks.run(train_shared, 2, str(dataset), str(tmp_path / name), 4, steals)
        assert ended.codes == [0, 0], ended.errors
    shared, alone = (trained(tmp_path / name, 2, range(1, 5)) for name in ("shared", "alone"))
    for step in range(1, 5):
        assert shared[0][step] + shared[1][step] == alone[0][step] + alone[1][step]
        assert max((shared[0][step] + shared[1][step]).values()) == 1
    # The slow rank's pieces were run by the free one, so that it has fewer samples than by plan.
    assert sum(counted.total() for counted in shared[0].values()) < sum(
        counted.total() for counted in alone[0].values()
    )
    assert [line.samples for line in read_metrics(tmp_path / "shared", 4)] == [
        line.samples for line in read_metrics(tmp_path / "alone", 4)
    ]


@thorough
def test_a_run_goes_on_with_or_without_it_and_in_another_layout(
    dataset: Path, tmp_path: Path, ranks: Ranks
) -> None:
    out = tmp_path / "run"
    for steps, steals, zero1 in ((2, True, False), (4, False, False), (6, True, True)):
        ended = ranks.run(train_shared, 2, str(dataset), str(out), steps, steals, zero1)
        assert ended.codes == [0, 0], ended.errors
    parts = trained(out, 2, range(1, 7))
    once = sum((parts[0][step] + parts[1][step] for step in range(1, 7)), Counter())
    alone = ranks.run(train_shared, 2, str(dataset), str(tmp_path / "alone"), 6, False)
    assert alone.codes == [0, 0], alone.errors
    planned = trained(tmp_path / "alone", 2, range(1, 7))
    assert once == sum((planned[0][step] + planned[1][step] for step in range(1, 7)), Counter())


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"schedule": "cascade"}, "cascades follow a plan of all ranks"),
        ({"dp_shard": 2}, "take dp_shard=1, or shard=optimizer"),
        ({"tp": 2}, "leave tp at 1"),
        ({"ring": 2}, "leave ring at 1"),
    ],
)
def test_layouts_whose_ranks_run_in_step_are_refused(layout: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ParallelConfig(work_stealing=SHARED, **layout)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ({"microbatches": 1}, "take 2 or more"),
        ({"microbatches": 4, "regime": "slot"}, "needs stream.regime=step"),
        ({"microbatches": 4, "policy": "dual_constraint"}, "needs stream.policy=balanced"),
    ],
)
def test_streams_of_a_run_that_cannot_be_shared_are_refused(stream: dict, message: str) -> None:
    compression = TrainConfig().compression.model_dump()
    buckets = {"frames": [9], "sizes": [[16, 24]], "memory_tokens": 3000}
    buckets |= {"compression": compression, "max_text_tokens": 300}
    run = {"dataset": "data", "out": "run", "train": {"parallel": {"work_stealing": {}}}}
    with pytest.raises(ValidationError, match=message):
        TrainRunConfig.model_validate({**run, "stream": {"buckets": buckets, **stream}})


def test_streams_and_groups_that_cannot_share_are_refused() -> None:
    device = tiny_config(1).device
    with pytest.raises(UsageError, match="this stream is a ClipStream"):
        share_steps(ClipStream(0, 2), WorkStealingConfig(), World(0, 2, device))
    assert share_steps(stream := ClipStream(), WorkStealingConfig(), World(0, 1, device)) is stream
