"""Datasets that grow and shrink while a run goes on: every sample that is there counts once."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import (
    Dataset,
    Removal,
    Sample,
    next_shard_number,
    open_dataset,
    publish,
    verify,
    write_shard,
)
from reelweave.loader.dataset.history import REMEMBERED, SHAPE, RevisionHistory
from reelweave.loader.dataset.manifest import history_path
from reelweave.loader.dataset.plan_index import DTYPES, PlanIndex
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.plan.shuffle import Shuffle
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.dataset.test_revisions import accounted
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import SAMPLES, config, write
from tests.thorough import beyond, thorough


@pytest.fixture
def growing(tmp_path: Path, samples: list[Sample]) -> Path:
    """A dataset of its own, without the last five samples."""
    return write(tmp_path / "dataset", samples[: SAMPLES - 5])


def add(folder: Path, samples: list[Sample]) -> Dataset:
    """The next revision, with a shard more."""
    dataset = open_dataset(folder)
    shards = dataset.shards()
    written = write_shard(dataset.storage, next_shard_number(shards), samples)
    publish(dataset.storage, [*shards, written], accounted([*shards, written]), dataset.manifest)
    return open_dataset(folder)


def take_down(folder: Path, key: str) -> Dataset:
    remove(open_storage(folder), Removal(key=key, date="2026-01-01", reason="asked for", samples=0))
    return open_dataset(folder)


def counted(steps: list[list[object]]) -> Counter[str]:
    return Counter(key for step in steps for micro in step for key in micro.keys if micro.weight)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"shuffle": Shuffle(order="permuted")}, marks=thorough),
        {"regime": "pack"},
        pytest.param({"regime": "slot", "microbatches": 2}, marks=thorough),
    ],
)
def test_samples_that_come_count_once_in_the_epoch_and_those_that_go_no_more(
    growing: Path, samples: list[Sample], tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = config(epochs=2, decode=False, node_folder=tmp_path / "node", **changes)
    before = open_dataset(growing)
    first, state = run_steps(before, settings, 2, None, 1)
    seen = counted(first)
    trained, waiting = sorted(seen)[0], sorted(before.row_numbers.keys() - seen.keys())[0]
    # The new keys lie between the old ones, so that every row has another number.
    named = [(f"key{number:02}b", sample) for number, sample in enumerate(samples[:3])]
    other = {"source_sha256": "0" * 64}
    new = [replace(sample, row={**sample.row, "key": key, "source": key, **other}) for key, sample in named]
    add(growing, new)
    take_down(growing, trained)
    second, state = run_steps(take_down(growing, waiting), settings, 1, state, 1)
    assert len(json.dumps(state)) < 4096
    third, state = run_steps(add(growing, samples[SAMPLES - 5 : SAMPLES]), settings, 2, state, 10**4)
    last = open_dataset(growing)
    alive = dict.fromkeys(last.row_numbers, 1)
    assert trained not in alive
    assert waiting not in alive
    by_epoch = [
        counted([[micro for micro in step if micro.epoch == epoch] for step in first + second + third])
        for epoch in (0, 1)
    ]
    assert by_epoch == [Counter(alive | {trained: 1}), Counter(alive)]
    assert verify(last.storage).problems == []


def test_a_running_stream_adopts_a_revision_as_a_resumed_one_does(
    growing: Path, samples: list[Sample]
) -> None:
    settings = config(epochs=1, decode=False)
    stream = VideoStream(open_dataset(growing), settings)
    iterator = iter(stream)
    begun = [next(iterator).keys for _ in range(2)]
    iterator.close()
    state = stream.state_dict()
    later = add(growing, samples[SAMPLES - 5 : SAMPLES])
    stream.adopt(later)
    resumed = VideoStream(later, settings)
    resumed.load_state_dict(state)
    assert stream.state_dict() == resumed.state_dict()
    rest = [micro.keys for micro in stream]
    assert rest == [micro.keys for micro in resumed]
    assert sorted(sum(begun + rest, ())) == sorted(later.row_numbers)
    # Who goes on with the state that this one has now needs the later revision.
    with pytest.raises(UsageError, match="dataset was"):
        VideoStream(open_dataset(write(growing.parent / "other", samples)), settings).load_state_dict(state)


def test_a_stream_goes_on_as_before_where_a_later_revision_cannot_be_read(
    growing: Path, samples: list[Sample]
) -> None:
    settings = config(epochs=1, decode=False)
    whole = [micro.keys for micro in VideoStream(open_dataset(growing), settings)]
    stream = VideoStream(before := open_dataset(growing), settings)
    state = stream.state_dict()
    later = add(growing, samples[SAMPLES - 5 : SAMPLES])
    (growing / history_path(later.manifest.revision)).unlink()
    with pytest.raises(RunError):
        stream.adopt(later)
    assert (stream.source, stream.state_dict()) == (before, state)
    assert [micro.keys for micro in stream] == whole


def test_between_two_epochs_nothing_of_the_old_revision_is_left(growing: Path, samples: list[Sample]) -> None:
    settings = config(epochs=None, decode=False, shuffle=Shuffle(order="permuted", run=2))
    stream = VideoStream(open_dataset(growing), settings)
    state = stream.state_dict()
    later = add(growing, samples[SAMPLES - 5 : SAMPLES])
    resumed = VideoStream(later, settings)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == VideoStream(later, settings).state_dict()


def test_what_cannot_be_gone_on_with_is_refused_in_words(
    growing: Path, samples: list[Sample], tmp_path: Path
) -> None:
    runs = config(decode=False, shuffle=Shuffle(order="permuted", run=2))
    _, in_runs = run_steps(open_dataset(growing), runs, 1, None, 1)
    _, state = run_steps(open_dataset(growing), config(decode=False), 1, None, 1)
    other = open_dataset(write(tmp_path / "other", samples))
    with pytest.raises(UsageError, match="dataset was"):
        VideoStream(open_dataset(growing), config(decode=False)).adopt(other)
    for number in range(REMEMBERED + 1):
        later = (
            add(growing, [samples[SAMPLES - 5 + number]])
            if number < 5
            else take_down(growing, f"key{number:02}")
        )
        if number == 0:
            with pytest.raises(UsageError, match="between two epochs"):
                VideoStream(later, runs).load_state_dict(in_runs)
    with pytest.raises(UsageError, match="dataset was"):
        VideoStream(later, config(decode=False)).load_state_dict(state)


def shapes(generator: np.random.Generator, keys: list[str], known: dict[str, tuple[int, ...]]) -> PlanIndex:
    for key in keys:
        if key not in known or generator.random() < 0.05:
            known[key] = tuple(generator.integers(1, 100, len(SHAPE)).tolist())
    table = np.array([known[key] for key in keys], np.int64).reshape(-1, len(SHAPE)).T
    columns = {name: values.astype(DTYPES[name]) for name, values in zip(SHAPE, table, strict=True)}
    return PlanIndex(
        **columns, **{name: np.zeros(len(keys), DTYPES[name]) for name in ("shard", "offset", "size")}
    )


@pytest.mark.parametrize("seed", beyond(5, range(20)))
def test_the_history_tells_every_remembered_revision_as_it_was(seed: int, tmp_path: Path) -> None:
    file = tmp_path / "history.arrow"
    generator = np.random.default_rng(seed)
    known: dict[str, tuple[int, ...]] = {}
    keys = sorted({f"{number:03}" for number in generator.integers(0, 200, generator.integers(0, 60))})
    told = [(keys, dict(known), shapes(generator, keys, known))]
    told = [(keys, dict(known), told[0][2])]
    history = RevisionHistory.of(told[0][2], 0)
    for revision in range(1, REMEMBERED + 6):
        gone = {key for key in keys if generator.random() < 0.2}
        came = {f"{number:03}" for number in generator.integers(0, 200, generator.integers(0, 20))}
        before, keys = keys, sorted((set(keys) - gone) | came)
        now = shapes(generator, keys, known)
        parts = (
            [pa.array(one[first : first + size], pa.string()) for first in range(0, len(one), size)]
            for one, size in ((before, 7), (keys, 5))
        )
        history.with_revision(*parts, now, revision).write(file)
        history = RevisionHistory.from_arrow(file.read_bytes(), "history.arrow")
        told.append((keys, dict(known), now))
    for revision in range(len(told) - 1 - REMEMBERED, len(told)):
        own, shape_of, index = told[revision]
        found = history.plan_index(revision)
        for name in SHAPE:
            assert np.array_equal(getattr(found, name), getattr(index, name))
        later = int(generator.integers(revision, len(told)))
        row_of = {key: row for row, key in enumerate(told[later][0])}
        # Gone in between, or of another shape since: another sample.
        stayed = [
            all(key in keys and shape[key] == shape_of[key] for keys, shape, _ in told[revision : later + 1])
            for key in own
        ]
        expected = [row_of[key] if stays else -1 for key, stays in zip(own, stayed, strict=True)]
        assert history.rows_after(revision, later).tolist() == expected
