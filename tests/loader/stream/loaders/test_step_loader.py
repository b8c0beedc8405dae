"""Whole steps, their lengths and states, and batches that training loops move to where they need them."""

import subprocess
import sys
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from reelweave.loader import StepLoader, VideoStream
from reelweave.loader.batch import Batch, Pack, Step
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import NoLengthError, UsageError
from tests.loader.refused import refused
from tests.loader.stream_clips import EVERY_KEY, small
from tests.thorough import thorough

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital.")


def make(dataset: Dataset, rank: int = 0, world_size: int = 1, **changes: object) -> VideoStream:
    return small(dataset, rank, world_size, **{"microbatches": 2} | changes)


def keys(steps: list[Step]) -> list[str]:
    return [key for step in steps for batch in step if batch.weight for key in batch.keys]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_pass_is_an_epoch_of_whole_steps(dataset: Dataset, processes: int) -> None:
    loaders = [StepLoader(make(dataset, rank, 2), processes) for rank in range(2)]
    for epoch in (0, 1):
        lengths = [len(loader) for loader in loaders]
        ranks = [list(loader) for loader in loaders]
        assert [len(steps) for steps in ranks] == lengths
        assert lengths[0] == lengths[1]
        assert sorted(keys(ranks[0] + ranks[1])) == EVERY_KEY
        for one, other in zip(*ranks, strict=True):
            assert (one.step, one.epoch, one.samples) == (other.step, epoch, other.samples)
            assert one.own_samples + other.own_samples == one.samples
            assert sum(batch.weight for step in (one, other) for batch in step) == pytest.approx(1)
            assert [batch.ends_step for batch in one] == [False] * (len(one) - 1) + [True]
    assert list(loaders[0]) == []
    assert len(loaders[0]) == 0


@pytest.mark.parametrize("processes", [0, 2])
def test_a_state_stands_behind_the_last_step_that_was_handed_out(dataset: Dataset, processes: int) -> None:
    whole = keys(list(StepLoader(make(dataset))))
    stream = make(dataset)
    loader = StepLoader(stream, processes)
    found = list(islice(loader, 3))  # a pass that is left goes on
    found += islice(loader, 2)
    assert loader.state_dict() == stream.state_after(found[-1].batches[-1])
    other = StepLoader(make(dataset), 2 - processes)
    other.load_state_dict(loader.state_dict())
    assert len(other) == len(StepLoader(make(dataset)))  # of the epoch, not of what is left of it
    assert keys([*found, *other]) == whole
    loader.load_state_dict(stream.state_after(found[1].batches[-1]))
    assert keys([*found[:2], *loader]) == whole
    assert loader.state_dict()["epoch"] == 0
    loader.close()


def test_processes_of_another_loader_beside_it_are_refused(dataset: Dataset) -> None:
    stream = make(dataset)
    steps = iter(StepLoader(stream, 1))
    next(steps)
    next(iter(DataLoader(stream, batch_size=None, num_workers=1)))
    with refused("another DataLoader began"):
        list(steps)


def test_inside_other_loaders_it_has_to_be_in_their_process(dataset: Dataset) -> None:
    assert sorted(keys(list(DataLoader(StepLoader(make(dataset)), batch_size=None)))) == EVERY_KEY
    first, other = (StatefulDataLoader(StepLoader(make(dataset)), batch_size=None) for _ in range(2))
    found = list(islice(first, 4))
    other.load_state_dict(first.state_dict())
    assert sorted(keys([*found, *other])) == EVERY_KEY
    with refused(r"StepLoader\(stream, processes=n\)"):
        next(iter(DataLoader(StepLoader(make(dataset)), batch_size=None, num_workers=1)))


@pytest.mark.parametrize("processes", [0, 1])
def test_a_loader_for_evaluation_begins_anew_in_each_pass(
    dataset: Dataset, processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    loader = StepLoader(make(dataset, epochs=1), processes, repeats=True)
    caplog.clear()  # one sample fits no bucket
    next(iter(loader))  # as Lightning's sanity check leaves it
    first, second = list(loader), list(loader)
    assert len(first) == len(second) == len(loader)
    assert keys(first) == keys(second)
    assert sorted(keys(first)) == EVERY_KEY
    assert not caplog.records


def test_a_pass_behind_the_last_epoch_says_that_it_is_over(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    stream = make(dataset, epochs=1)
    for reader in (stream, StepLoader(stream)):
        list(reader)
        caplog.clear()
        assert not list(reader)
        assert [record.args for record in caplog.records] == [(1,)]
        assert "repeats=True" in caplog.text
        stream.load_state_dict(make(dataset, epochs=1).state_dict())


def test_a_dataloader_that_would_batch_batches_again_is_told_what_to_set(dataset: Dataset) -> None:
    for source in (make(dataset), StepLoader(make(dataset)), make(dataset, regime="pack")):
        with pytest.raises(UsageError, match=r"DataLoader\(stream, batch_size=None\)"):
            next(iter(DataLoader(source)))


@pytest.mark.parametrize(
    ("changes", "world_size"),
    [
        ({"microbatches": 1}, 2),
        pytest.param({"microbatches": 3}, 1, marks=thorough),
        pytest.param({"regime": "slot"}, 2, marks=thorough),
        pytest.param({"regime": "pack"}, 1, marks=thorough),
    ],
)
def test_the_length_of_a_stream_stays_that_of_all_its_epochs(
    dataset: Dataset, changes: dict[str, object], world_size: int
) -> None:
    stream, other = (make(dataset, 0, world_size, **changes) for _ in range(2))
    count = len(stream)
    batches = iter(stream)
    first = list(islice(batches, count // 2 + 1))  # in the second epoch
    other.load_state_dict(stream.state_dict())
    # Lightning and transformers subtract from the length of a loader that resumes what they count as done.
    assert len(stream) == len(other) == count
    assert len(first) + len(list(batches)) == len(stream) == count


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": None}, "without an end"),
        ({"world_size": 2}, "different numbers of microbatches"),
        ({"curriculum": [{"until_step": 2}, {"frames": (5,)}]}, "stream.curriculum"),
    ],
)
def test_what_has_no_length_says_why(dataset: Dataset, changes: dict[str, object], words: str) -> None:
    stream = make(dataset, **changes)
    with pytest.raises(NoLengthError, match=words):
        len(stream)
    with pytest.raises(TypeError):  # which is what training loops take for a loader without a length
        len(DataLoader(stream, batch_size=None))
    # Steps are always counted: without a length Lightning would take a step ahead of the one it trains, and save the
    # state behind it.
    loader = StepLoader(stream)
    assert len(loader) == len(list(loader))


def tensors(batch: Batch) -> list[torch.Tensor]:
    found = list(batch.contexts or ()) + ([batch.media.bytes_N] if batch.media else [])
    if isinstance(batch, Pack):
        return [*found, *batch.videos]
    return [*found, batch.video_BCTHW, *([] if batch.latents_BCTHW is None else [batch.latents_BCTHW])]


@pytest.mark.parametrize(
    "changes", [{}, {"decode": True}, {"regime": "pack"}, {"regime": "pack", "decode": True}]
)
def test_batches_and_steps_move_with_all_their_tensors(dataset: Dataset, changes: dict[str, object]) -> None:
    from accelerate.utils import send_to_device

    [step] = islice(StepLoader(make(dataset, **changes)), 1)
    for moved in (
        step.to("meta"),
        step.to(torch.device("meta"), non_blocking=True),
        send_to_device(step, "meta"),
    ):
        assert len(moved) == len(step)
        for one, other in zip(step, moved, strict=True):
            assert type(one) is type(other)
            assert {tensor.device.type for tensor in tensors(other)} == {"meta"}
            assert [tensor.shape for tensor in tensors(one)] == [tensor.shape for tensor in tensors(other)]
            assert (one.keys, one.weight, one.after) == (other.keys, other.weight, other.after)


def test_latents_and_contexts_move_too_and_a_pinning_loader_asks_the_batch(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    [batch] = islice(make(dataset), 1)
    stored = replace(batch, latents_BCTHW=torch.zeros(2), contexts=(torch.zeros(1, 2),))
    assert len(tensors(stored)) == 4
    assert {tensor.device.type for tensor in tensors(stored.to("meta"))} == {"meta"}
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    assert torch.utils.data._utils.pin_memory.pin_memory(Step((stored,))).batches[0].keys == stored.keys
    assert len(pinned) == 4


@thorough
def test_a_pass_that_is_left_ends_quietly_with_the_program(dataset: Dataset) -> None:
    code = (
        "from reelweave.loader import StepLoader, VideoStream, open_dataset\n"
        "from tests.loader.stream_clips import BUCKETS, config\n"
        "all = config(buckets=BUCKETS.model_copy(update={'frames': (4, 5, 9)}))\n"
        f"loader = StepLoader(VideoStream(open_dataset({dataset.storage.root!r}), all))\n"
        "print(next(iter(loader)).step)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
