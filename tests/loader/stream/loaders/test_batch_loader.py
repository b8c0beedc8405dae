"""Single batches for loops that count them: lengths, states, weights, and what other libraries would do wrongly."""

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from reelweave.loader import BatchLoader, StepLoader, open_batches
from reelweave.loader.batch import Microbatch
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import UsageError
from tests.loader.stream_clips import BUCKETS, EVERY_KEY, small


def make(dataset: Dataset, rank: int = 0, world_size: int = 2, **changes: object) -> BatchLoader:
    return BatchLoader(small(dataset, rank, world_size, microbatches=2, regime="slot", **changes))


def keys(batches: list[Microbatch]) -> list[str]:
    return [key for batch in batches if batch.weight for key in batch.keys]


def test_all_ranks_have_as_many_batches_and_their_weights_average_to_the_step(dataset: Dataset) -> None:
    loaders = [make(dataset, rank, denominator="step") for rank in range(2)]
    lengths = [len(loader) for loader in loaders]
    ranks = [list(loader) for loader in loaders]
    assert [len(batches) for batches in ranks] == lengths
    assert sorted(keys(ranks[0] + ranks[1])) == EVERY_KEY
    for step in range(lengths[0] // 2):
        weights = [batch.average_weight for batches in ranks for batch in batches[2 * step : 2 * step + 2]]
        assert sum(weights) / 4 == pytest.approx(1)
    assert {batch.epoch for batch in loaders[0]} == {1}


def test_a_state_within_a_step_repeats_the_step(dataset: Dataset) -> None:
    loader, other = make(dataset, 0, 1), make(dataset, 0, 1)
    first = list(islice(loader, 5))
    other.load_state_dict(loader.state_dict())
    assert len(other) == len(loader)
    assert sorted(keys(first[:4] + list(other))) == EVERY_KEY
    assert sorted(keys(first + list(loader))) == EVERY_KEY  # a pass that is left goes on


def test_an_iterator_of_micro_batches_goes_on_in_the_next_epoch(dataset: Dataset) -> None:
    loader = make(dataset, 0, 1, epochs=2)
    count = len(loader)
    batches = [next(loader) for _ in range(count + 1)]
    assert [batch.epoch for batch in batches] == [0] * count + [1]
    list(loader)
    with pytest.raises(StopIteration):
        next(loader)


def test_steps_of_unequal_ranks_are_refused(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match="regime: slot"):
        BatchLoader(small(dataset, 0, 2, microbatches=2))
    assert len(BatchLoader(small(dataset, 0, 2, microbatches=1)))


def test_a_longer_epoch_than_was_told_is_said(dataset: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    before, fewer, more = (make(dataset, 0, ranks) for ranks in (1, 1, 3))
    list(islice(before, 4))
    for loader in (fewer, more):
        len(loader)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "reelweave.loader.stream.loaders"):
            loader.load_state_dict(before.state_dict())
        assert ("leaves out the last" in caplog.text) == (loader is more)


def test_skipping_what_the_state_knows_is_refused(dataset: Dataset) -> None:
    from accelerate import skip_first_batches

    for loader in (make(dataset), StepLoader(small(dataset))):
        with pytest.raises(UsageError, match="ignore_data_skip=True"):
            skip_first_batches(loader, 2)
        assert not hasattr(loader, "dataset")  # Lightning and the Trainer ask so


@pytest.fixture
def stream_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "stream.yaml"
    path.write_text(yaml.safe_dump({"buckets": BUCKETS.model_dump(mode="json"), "regime": "slot"}))
    return path


class ParallelState:
    get_data_parallel_rank = staticmethod(lambda: 1)
    get_data_parallel_world_size = staticmethod(lambda: 3)


def test_a_loop_says_its_ranks_and_a_state_goes_on(folder: Path, stream_yaml: Path) -> None:
    loader = open_batches(
        folder, stream_yaml, ParallelState, microbatches=2, convert=lambda batch: batch.keys
    )
    first = next(loader)
    assert isinstance(first[0], str)
    next(loader)
    other = open_batches(folder, stream_yaml, rank=0, world_size=1, state=loader.state_dict())
    assert other.stream.world_size == 1
    assert other.state_dict()["step"] == 1


def test_a_loop_asked_twice_or_of_no_kind_is_refused(folder: Path, stream_yaml: Path) -> None:
    with pytest.raises(UsageError, match="given twice"):
        open_batches(folder, stream_yaml, ParallelState, rank=0)
    with pytest.raises(UsageError, match="loop is a list"):
        open_batches(folder, stream_yaml, [])
    with pytest.raises(UsageError, match="microbatches is 0"):
        open_batches(folder, stream_yaml, microbatches=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1", "begins with buckets"),
        ("buckets: {frames: [5]}\nregime: slots", "line 1: buckets"),
        ("regime: slot", "buckets: Field required"),
    ],
)
def test_a_wrong_configuration_is_named_by_its_key(
    folder: Path, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "stream.yaml").write_text(text)
    with pytest.raises(UsageError, match=words):
        open_batches(folder, tmp_path / "stream.yaml")


class StandInTrainer:
    """What `open_batches` asks of transformers' Trainer."""

    def __init__(self, folder: Path, train_dataset: Any = None) -> None:
        from transformers import TrainingArguments

        self.args = TrainingArguments(str(folder), use_cpu=True, report_to=[])
        self.train_dataset, self.resumed = train_dataset, None

    def get_train_dataloader(self) -> None: ...

    def add_callback(self, callback: Any) -> None: ...

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        self.resumed = resume_from_checkpoint


def test_a_checkpoint_without_the_loaders_state_is_refused(
    folder: Path, stream_yaml: Path, tmp_path: Path
) -> None:
    trainer = StandInTrainer(tmp_path)
    loader = open_batches(folder, stream_yaml, trainer)
    assert trainer.get_train_dataloader() is loader
    assert trainer.args.ignore_data_skip
    with pytest.raises(UsageError, match=r"holds no reelweave_loader\.json"):
        trainer.train(str(tmp_path))
    with pytest.raises(UsageError, match="train_dataset beside"):
        open_batches(folder, stream_yaml, StandInTrainer(tmp_path, train_dataset=[]))


def test_an_epoch_that_the_trainer_would_count_wrongly_is_refused(
    folder: Path, stream_yaml: Path, tmp_path: Path
) -> None:
    steps = open_batches(folder, stream_yaml)
    for _ in range(len(steps) + 1):
        next(steps)  # into the second epoch
    (tmp_path / "reelweave_loader.json").write_text(json.dumps(steps.state_dict()))
    (tmp_path / "trainer_state.json").write_text('{"global_step": 99}')
    trainer = StandInTrainer(tmp_path)
    trainer.args.num_train_epochs = 2
    open_batches(folder, stream_yaml, trainer)
    with pytest.raises(UsageError, match="set max_steps"):
        trainer.train(str(tmp_path))
    assert trainer.resumed is None
