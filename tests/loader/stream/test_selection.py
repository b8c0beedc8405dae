"""Streams that draw a selection: what they draw, what they say, and how they go on as datasets change."""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch.utils.data import DataLoader

from reelweave.loader.batch import Batch
from reelweave.loader.blend import open_blend
from reelweave.loader.blend.selection.config import GroupSplit, Quota
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.dataset.test_growth import add, take_down
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import BUCKETS, config, write
from tests.thorough import but

ONE_BY_ONE = BUCKETS.model_copy(update={"max_batch": 1})
GOOD = {"where": "aesthetic > 4"}


def made(samples: list[Sample], numbers: Iterator[int] | range) -> list[Sample]:
    """Samples with an aesthetic of 0 to 9, a film of four clips each, and a licence for every second one."""
    usable = [sample for sample in samples if sample.row["key"] != "tiny"]
    chosen = []
    for number in numbers:
        sample = usable[number % len(usable)]
        row = {
            **sample.row,
            "key": f"k{number:03}",
            "source": f"film{number // 4:02}",
            "source_sha256": f"{number:064x}",
            "start_s": number * 2.0,  # a take-down reaches clips that show the same seconds
            "end_s": number * 2.0 + sample.row["duration_s"],
            "scores": {} if number % 10 == 3 else {"aesthetic": float(number * 7 % 10)},
            "attributes": {"licence": "cc0"} if number % 2 else {},
        }
        chosen.append(replace(sample, row=row))
    return chosen


@pytest.fixture
def folder(samples: list[Sample], tmp_path: Path) -> Path:
    return write(tmp_path / "films", made(samples, range(0, 60, 2)) + made(samples, range(1, 20, 2)))


def settings(**changes: object):
    return config(decode=False, buckets=ONE_BY_ONE, **changes)


def keys(batches: object, epoch: int | None = None) -> Counter[str]:
    assert not isinstance(batches, Batch)
    chosen = (batch for batch in batches if batch.weight and epoch in (None, batch.epoch))  # type: ignore[attr-defined]
    return Counter(key for batch in chosen for key in batch.keys)


def flat(steps: list[list[Batch]]) -> list[Batch]:
    return [batch for step in steps for batch in step]


def expected(folder: Path, passes: object) -> Counter[str]:
    return Counter(sample.row["key"] for sample in open_dataset(folder) if passes(sample.row))  # type: ignore[operator]


def is_good(row: dict) -> bool:
    return row["scores"].get("aesthetic", 0) > 4


def test_a_condition_is_drawn_and_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        stream = VideoStream(open_dataset(folder), settings(**GOOD))
    assert "18 of 40 samples of" in caplog.text
    assert "are drawn (45.00%): where aesthetic > 4; 2 are left out since they lack a value" in caplog.text
    batches = list(stream)
    good = expected(folder, is_good)
    assert len(good) == 18
    assert keys(batches, 0) == keys(batches, 1) == good
    assert all((batch.rows.score("aesthetic") > 4).all() for batch in batches)
    # Another rank says nothing, and all ranks together draw them once.
    caplog.clear()
    ranks = [list(VideoStream(open_dataset(folder), settings(**GOOD, epochs=1), rank, 3)) for rank in (1, 2)]
    assert "are drawn" not in caplog.text
    ranks.append(list(VideoStream(open_dataset(folder), settings(**GOOD, epochs=1), 0, 3)))
    assert keys([batch for rank in ranks for batch in rank]) == good


@pytest.mark.parametrize("regime", ["pack", "slot"])
def test_a_condition_holds_in_every_regime_and_in_workers(folder: Path, regime: str) -> None:
    changes = settings(where="licence == 'cc0'", regime=regime, epochs=1, microbatches=2)
    cc0 = expected(folder, lambda row: "licence" in row["attributes"])
    assert keys(VideoStream(open_dataset(folder), changes)) == cc0
    start = "spawn" if regime == "pack" else "fork"
    stream = VideoStream(open_dataset(folder), changes)
    # A spawned worker imports PyTorch, for 3 s.
    count = 1 if start == "spawn" else 2
    loader = DataLoader(stream, batch_size=None, num_workers=count, multiprocessing_context=start)
    assert keys(loader) == cc0


def test_a_condition_in_a_blend_file_and_one_of_the_stream_both_hold(folder: Path) -> None:
    file = folder.parent / "mix.yaml"
    nodes = [
        {"path": str(folder), "where": "licence == 'cc0'", "name": "free"},
        {"path": str(folder), "name": "all"},
    ]
    file.write_text(yaml.safe_dump({"splits": {"train": {"blend_epochized": nodes}}}))
    good = expected(folder, is_good)
    free = expected(folder, lambda row: is_good(row) and "licence" in row["attributes"])
    assert keys(VideoStream(open_blend(file), settings(**GOOD, epochs=1))) == good + free
    outer = {"where": "aesthetic > 4", "blend_epochized": nodes}
    file.write_text(yaml.safe_dump({"splits": {"train": outer}}))
    assert keys(VideoStream(open_blend(file), settings(epochs=1))) == good + free


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"where": "aesthetik > 4"}, "no sample has aesthetik; did you mean aesthetic?"),
        ({"where": "aesthetic > 40"}, "the selection leaves no sample: 0 of 40 samples"),
        ({"split": GroupSplit(by="movie")}, "no sample has movie"),
    ],
)
def test_what_selects_nothing_is_refused(folder: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        VideoStream(open_dataset(folder), settings(**changes))
    assert words in str(refused.value)


def test_a_state_goes_on_with_its_own_selection_alone(folder: Path) -> None:
    stream = VideoStream(open_dataset(folder), settings(**GOOD))
    iterator = iter(stream)
    first = [next(iterator) for _ in range(7)]
    iterator.close()
    state = json.loads(json.dumps(stream.state_dict()))
    assert state["selection"] == "where aesthetic > 4"
    resumed = VideoStream(open_dataset(folder), settings(where="aesthetic  > 4.0"))  # the same samples
    resumed.load_state_dict(state)
    assert keys(first) + keys(resumed) == Counter(dict.fromkeys(expected(folder, is_good), 2))
    for changes, words in (
        ({}, "here is all samples (no stream.where, split or quota)"),
        ({"where": "aesthetic > 5"}, "here is where aesthetic > 5"),
        (
            {**GOOD, "quota": Quota(samples=1)},
            "here is where aesthetic > 4; at most 1 samples for each source",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            VideoStream(open_dataset(folder), settings(**changes)).load_state_dict(state)
        assert "cannot resume: the state was saved with where aesthetic > 4, and" in str(refused.value)
        assert words in str(refused.value)
    plain = VideoStream(open_dataset(folder), settings()).state_dict()
    assert "selection" not in plain
    with pytest.raises(UsageError, match="the state was saved with all samples"):
        VideoStream(open_dataset(folder), settings(**GOOD)).load_state_dict(plain)


def test_samples_that_come_are_drawn_once_if_they_pass(folder: Path, samples: list[Sample]) -> None:
    changes = settings(**GOOD)
    first, state = run_steps(open_dataset(folder), changes, 2, None, 4)
    add(folder, made(samples, range(100, 110)))
    second, state = run_steps(open_dataset(folder), changes, 1, state, 3)
    take_down(folder, next(iter(keys(flat(first)))))  # trained in this epoch
    take_down(folder, "k003")  # has no score: it was never drawn
    rest, _ = run_steps(open_dataset(folder), changes, 2, state, 10**4)
    found = flat(first + second + rest)
    alive = expected(folder, is_good)
    assert len(alive) == 22
    gone = keys(found, 0) - alive
    assert len(gone) == 1
    assert keys(found, 0) == alive + gone
    assert keys(found, 1) == alive


@pytest.mark.parametrize("more", [{}, {"quota": Quota(samples=2)}])
def test_many_removed_samples_are_known_to_the_machine_that_drew_and_refused_elsewhere(
    folder: Path, tmp_path: Path, more: dict[str, object]
) -> None:
    changes = settings(**GOOD, **more)
    first, state = run_steps(open_dataset(folder), changes, 1, None, 4)
    for key in sorted(open_dataset(folder).row_numbers)[:20:2]:
        take_down(folder, key)
    elsewhere = open_dataset(folder, StorageConfig(node_folder=tmp_path / "node"))
    with pytest.raises(
        UsageError, match="of which some were drawn and others not, by their split or a selection"
    ):
        run_steps(elsewhere, changes, 1, state, 1)
    rest, _ = run_steps(open_dataset(folder), changes, 1, state, 10**4)
    found = flat(first + rest)
    assert max(keys(found, 0).values()) == 1
    assert not keys(found, 1) - keys(found, 0)
    assert set(keys(found, 1)) <= open_dataset(folder).row_numbers.keys()


def test_changed_scores_of_samples_that_stay_are_refused_in_words(
    folder: Path, samples: list[Sample]
) -> None:
    changes = settings(**GOOD)
    _, state = run_steps(open_dataset(folder), changes, 1, None, 4)
    dataset = open_dataset(folder)
    [key] = [key for key in sorted(dataset.row_numbers) if key == "k002"]
    take_down(folder, key)
    [back] = made(samples, range(2, 3))
    back.row["scores"] = {"aesthetic": 9.0}
    add(folder, [back])
    # One that goes and one that comes: the old one is tried both ways.
    rest, _ = run_steps(open_dataset(folder), changes, 1, state, 10**4)
    assert "k002" in keys(flat(rest))


def test_a_running_stream_adopts_a_revision(folder: Path, samples: list[Sample]) -> None:
    stream = VideoStream(open_dataset(folder), settings(**GOOD, epochs=1))
    iterator = iter(stream)
    first = [next(iterator) for _ in range(3)]
    iterator.close()
    add(folder, made(samples, range(100, 110)))
    stream.adopt(open_dataset(folder))
    rest = list(stream)
    assert keys(first) + keys(rest) == expected(folder, is_good)
    assert all((batch.rows.score("aesthetic") > 4).all() for batch in (*first, *rest))


def test_a_quota_keeps_some_of_each_group_and_moves_little_as_data_comes(
    folder: Path, samples: list[Sample]
) -> None:
    changes = settings(quota=Quota(samples=1), epochs=1)

    def drawn(dataset: Dataset) -> dict[str, str]:
        batches = list(VideoStream(dataset, changes))
        return {
            source: key
            for batch in batches
            for source, key in zip(batch.rows.source, batch.keys, strict=True)
        }

    before = drawn(open_dataset(folder))
    assert len(before) == 15
    assert set(before) == {sample.row["source"] for sample in open_dataset(folder)}
    add(folder, made(samples, range(100, 120)))
    after = drawn(open_dataset(folder))
    assert {source: after[source] for source in before} == before
    two = list(VideoStream(open_dataset(folder), settings(quota=Quota(samples=2, by="licence"), epochs=1)))
    licences = Counter(licence for batch in two for licence in batch.rows.attribute("licence"))
    assert licences["cc0"] == 2
    assert licences[None] == 40  # samples without a value have no quota


def test_a_quota_goes_on_in_an_epoch_as_its_groups_grow(folder: Path, samples: list[Sample]) -> None:
    changes = settings(quota=Quota(samples=2))
    first, state = run_steps(open_dataset(folder), changes, 1, None, 9)
    add(folder, made(samples, range(21, 60, 2)))
    rest, _ = run_steps(open_dataset(folder), changes, 1, state, 10**4)
    found = flat(first + rest)
    assert max(keys(found, 0).values()) == max(keys(found, 1).values()) == 1
    now = keys(found, 1)
    assert len(now) == 30
    assert not now - keys(found, 0)


def test_weights_hold_among_selected_samples_as_sources_change(folder: Path, samples: list[Sample]) -> None:
    other = write(folder.parent / "other", made(samples, range(200, 212)))
    nodes = [{"path": str(folder), "weight": 1, "where": "aesthetic > 4"}, {"path": str(other), "weight": 2}]
    file = folder.parent / "mix.yaml"
    file.write_text(yaml.safe_dump({"splits": {"train": {"blend": nodes, "epoch_samples": 9}}}))
    changes = settings(epochs=12)
    found, state = run_steps(open_blend(file), changes, 1, None, 13)  # in the middle of the second epoch
    add(folder, made(samples, range(100, 110)))
    take_down(folder, "k003")  # has no score
    rest, _ = run_steps(open_blend(file), changes, 2, state, 10**4)
    batches = flat(found + rest)
    good = expected(folder, is_good)
    for epoch in range(12):
        drawn = keys(batches, epoch)
        assert sum(count for key, count in drawn.items() if key in good) == 3
        assert drawn.total() == 9
    counts = keys(batches)
    assert {counts[key] for key in good} == {1, 2}  # 36 draws of 23 samples, of which 5 came
    assert len(good) == 23


@pytest.mark.parametrize("seed", but([0], range(6), []))
def test_selections_and_growth_at_random(folder: Path, samples: list[Sample], seed: int) -> None:
    random = np.random.default_rng(seed)
    changes = settings(where="aesthetic > 3 or licence == 'cc0'", epochs=3)
    found, state, fresh = [], None, 200
    for _ in range(6):
        steps, state = run_steps(
            open_dataset(folder), changes, int(random.integers(1, 4)), state, int(random.integers(1, 12))
        )
        found += flat(steps)
        if random.random() < 0.5:
            add(folder, made(samples, range(fresh, fresh + 3)))
            fresh += 3
        else:
            take_down(folder, str(random.choice(sorted(open_dataset(folder).row_numbers))))
    steps, state = run_steps(open_dataset(folder), changes, 2, state, 10**4)
    found += flat(steps)
    for epoch in range(3):
        assert max(keys(found, epoch).values()) == 1
    alive = expected(folder, lambda row: row["scores"].get("aesthetic", 0) > 3 or row["attributes"])
    last = keys(found, 2)
    assert not alive - last
