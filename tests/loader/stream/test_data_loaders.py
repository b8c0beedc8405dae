"""Whatever loader stands around a stream, every sample counts once, or the stream says why it cannot know."""

import copy
import json
import multiprocessing
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.nodes import IterableWrapper, Loader, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

from reelweave.loader.batch import Microbatch
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.refused import refused
from tests.loader.stream_clips import EVERY_KEY, small
from tests.thorough import beyond, but, thorough

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital'")


def make(dataset: Dataset, rank: int = 0, world_size: int = 1, microbatches: int = 1) -> VideoStream:
    return small(dataset, rank, world_size, microbatches=microbatches, epochs=1)


def loader_of(kind: str, stream: VideoStream, workers: int) -> Any:
    if kind == "stream":
        return stream
    if kind == "nodes":
        return Loader(Prefetcher(IterableWrapper(stream), 3))
    if kind == "stateful":
        return StatefulDataLoader(stream, batch_size=None, num_workers=workers)
    return DataLoader(
        stream, batch_size=None, num_workers=workers, persistent_workers=kind == "persistent" and workers > 0
    )


def state_of(kind: str, loader: Any, stream: VideoStream, last: Microbatch) -> dict[str, Any]:
    """What a person would save behind a batch, as it comes back from a file."""
    state = loader.state_dict() if kind in ("stateful", "nodes") else stream.state_after(last)
    return json.loads(json.dumps(state))


def keys(batches: Iterator[Microbatch] | list[Microbatch]) -> list[str]:
    return [key for batch in batches if batch.weight for key in batch.keys]


@pytest.mark.parametrize(
    ("kind", "workers", "taken", "later", "microbatches"),
    but(
        [("plain", 0, 4, 2, 1), ("stateful", 2, 4, 3, 3), ("nodes", 0, 5, 0, 3)],
        [
            ("stream", 0, 4, 0, 3),
            ("plain", 0, 4, 2, 1),
            ("plain", 2, 1, 3, 1),
            ("plain", 3, 16, 0, 3),
            ("persistent", 2, 5, 2, 3),
            ("stateful", 0, 5, 3, 3),
            ("stateful", 2, 1, 0, 1),
            ("stateful", 2, 4, 3, 3),
            ("stateful", 3, 10, 1, 3),
            ("nodes", 0, 5, 0, 3),
        ],
        [
            ("stream", 0, 4, 0, 3),
            ("plain", 3, 16, 0, 3),
            ("persistent", 2, 5, 2, 3),
            ("stateful", 3, 10, 1, 3),
        ],
    ),
)
def test_stopped_and_begun_again_with_other_workers_every_sample_counts_once(
    dataset: Dataset, kind: str, workers: int, taken: int, later: int, microbatches: int
) -> None:
    stream = make(dataset, microbatches=microbatches)
    loader = loader_of(kind, stream, workers)
    found = list(islice(loader, taken))
    state = state_of(kind, loader, stream, found[-1])
    again = make(dataset, microbatches=microbatches)
    other = loader_of(kind, again, later)
    if kind == "nodes":
        other.load_state_dict(state)
    else:
        again.load_state_dict(state)
    rest = list(other)
    if kind != "stateful":  # an unfinished step begins again
        found = [batch for batch in found if batch.step < rest[0].step]
    assert sorted(keys([*found, *rest])) == EVERY_KEY


@pytest.mark.parametrize(
    ("workers", "taken", "every"),
    but(
        [(0, 4, 1), (2, 7, 3)],
        [(0, 4, 1), (1, 4, 1), (2, 4, 1), (2, 1, 1), (2, 7, 3), (3, 16, 1)],
        [(2, 1, 1), (3, 16, 1)],
    ),
)
def test_torchdata_goes_on_by_itself_at_the_next_microbatch(
    dataset: Dataset, workers: int, taken: int, every: int
) -> None:
    def loader() -> StatefulDataLoader:
        stream = make(dataset, microbatches=3)
        return StatefulDataLoader(stream, batch_size=None, num_workers=workers, snapshot_every_n_steps=every)

    first, other = loader(), loader()
    assert first.state_dict() is not None  # which starts its processes
    found = list(islice(first, taken))
    other.load_state_dict(first.state_dict())
    assert sorted(keys([*found, *other])) == EVERY_KEY
    stream = make(dataset, microbatches=3)
    stream.load_state_dict(first.state_dict())
    assert sorted(keys([*found, *stream])) == EVERY_KEY


@pytest.mark.parametrize(
    ("loader_type", "workers", "taken"),
    beyond(1, [(DataLoader, 2, 4), (DataLoader, 2, 100), (StatefulDataLoader, 1, 4)]),
)
def test_a_second_pass_over_worker_processes_is_refused_until_the_stream_is_moved(
    dataset: Dataset, loader_type: type[DataLoader], workers: int, taken: int
) -> None:
    stream = make(dataset)
    loader = loader_type(stream, batch_size=None, num_workers=workers)
    found = list(islice(loader, taken))
    for use in (lambda: next(iter(loader)), stream.state_dict, lambda: next(iter(stream)), stream.upcoming):
        with refused("cannot know how much of that was used"):
            use()
    stream.advance(found[-1])
    assert stream.state_dict() == stream.state_after(found[-1])
    assert sorted(keys([*found, *loader])) == EVERY_KEY


def test_processes_that_persist_go_on_where_the_stream_was_moved(dataset: Dataset) -> None:
    stream, found = make(dataset), []
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    for taken in (3, 4, 100):
        found += islice(loader, taken)
        again = iter(loader)
        for _ in range(2):  # of each process: a slow one would begin, and be refused, after the move below
            with refused("say where to go on"):
                next(again)
        stream.load_state_dict(stream.state_after(found[-1]))
    assert keys(found) == keys(make(dataset))


def test_a_torchdata_loader_that_has_finished_does_not_begin_again_unasked(dataset: Dataset) -> None:
    first = StatefulDataLoader(make(dataset), batch_size=None, num_workers=1)
    assert sorted(keys(first)) == EVERY_KEY
    again = StatefulDataLoader(make(dataset), batch_size=None, num_workers=1)
    again.load_state_dict(first.state_dict())
    with refused("cannot know how much of that was used"):
        next(iter(again))


@thorough
def test_streams_read_in_turns_by_this_process_and_by_others_go_on(dataset: Dataset) -> None:
    stream = make(dataset)
    found = list(islice(stream, 3))
    found += islice(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn"), 3)
    stream.load_state_dict(stream.state_after(found[-1]))
    found += islice(stream, 3)
    found += DataLoader(stream, batch_size=None, num_workers=1)
    assert keys(found) == keys(make(dataset))


def test_a_copy_of_a_stream_goes_its_own_way(dataset: Dataset) -> None:
    stream = make(dataset)
    next(iter(DataLoader(stream, batch_size=None, num_workers=1)))
    assert keys(pickle.loads(pickle.dumps(stream))) == keys(copy.deepcopy(stream)) == keys(make(dataset))


def test_the_state_of_another_ranks_loader_is_good_between_steps_only(dataset: Dataset) -> None:
    other = make(dataset, rank=1, world_size=2, microbatches=2)
    streams = [make(dataset, rank=rank, world_size=2, microbatches=2) for rank in (0, 1)]
    loader = StatefulDataLoader(streams[0], batch_size=None, num_workers=1)
    within = None
    for batch in loader:
        if not batch.ends_step:
            within = loader.state_dict()
        elif within is not None:
            break
    other.load_state_dict(loader.state_dict())
    assert other.state_dict() == streams[0].state_after(batch)
    other.load_state_dict(within)  # its step begins again
    assert other.state_dict()["step"] == batch.step
    by_itself = StatefulDataLoader(streams[1], batch_size=None, num_workers=1)
    by_itself.load_state_dict(loader.state_dict())
    with refused("saved by rank 0"):
        next(iter(by_itself))


def test_what_is_no_state_of_a_torchdata_loader_is_refused(dataset: Dataset) -> None:
    loader = StatefulDataLoader(make(dataset), batch_size=None, num_workers=2)
    next(iter(loader))
    state = json.dumps(loader.state_dict())
    stream, one_lost, another_last = make(dataset), json.loads(state), json.loads(state)
    one_lost["_snapshot"]["_worker_snapshots"].pop("worker_1")
    another_last["_snapshot"]["_last_yielded_worker_id"] = 7
    for broken, words in (
        ({"_snapshot": {}}, "_last_yielded_worker_id"),
        ({"fetcher_state": None}, "holds no state of the stream"),
        (one_lost, "1 worker processes out of 2"),
        (another_last, "worker_7"),
    ):
        with refused(words):
            stream.load_state_dict(broken)


def read_in_a_child(stream: VideoStream, found: Any) -> None:
    loader = DataLoader(stream, batch_size=None, num_workers=1)
    try:
        next(iter(loader))
    except UsageError as error:
        found.put(str(error))
    stream.load_state_dict(stream.state_dict())  # from here on the stream is the child's own
    found.put(keys(loader))


def test_worker_processes_of_another_process_than_the_streams_own_are_refused(dataset: Dataset) -> None:
    context = multiprocessing.get_context("fork")
    found, stream = context.Queue(), make(dataset)
    child = context.Process(target=read_in_a_child, args=(stream, found))
    child.start()
    assert "in the process that made its stream" in found.get(timeout=240)
    assert sorted(found.get(timeout=240)) == EVERY_KEY
    child.join(60)
    assert stream.state_dict()["step"] == 0
