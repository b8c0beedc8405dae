"""States of a stream: where it goes on, in other processes and on other ranks, and what it refuses."""

import json
from pathlib import Path

import pytest

from reelweave.loader.batch import Microbatch
from reelweave.loader.buckets.cost import LinearQuadraticCost
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import (
    MAX_PARTS,
    MAX_SETTINGS,
    EpochSegment,
    Position,
    Setting,
    read_state,
    state_of,
)
from reelweave.loader.plan.shuffle import Shuffle
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS, SAMPLES, config, digest, keys, write
from tests.train.ranks import Ranks


def test_a_stream_left_within_a_step_begins_the_step_again(dataset: Dataset) -> None:
    settings = config(microbatches=3, epochs=1)
    stream = VideoStream(dataset, settings)
    iterator = iter(stream)
    first = [next(iterator) for _ in range(4)]
    iterator.close()
    assert [micro.ends_step for micro in first] == [False, False, True, False]
    assert stream.state_dict() == stream.state_after(first[2]) == stream.state_after(first[3])
    again = VideoStream(dataset, settings)
    again.load_state_dict(stream.state_dict())
    assert digest(next(iter(again))) == digest(first[3])


def test_the_state_of_another_cost_is_refused(dataset: Dataset) -> None:
    state = VideoStream(dataset, config()).state_dict()
    costly = BUCKETS.model_copy(update={"cost": LinearQuadraticCost(token_s=1, square_s=0)})
    with pytest.raises(UsageError, match="config was"):
        VideoStream(dataset, config(buckets=costly)).load_state_dict(state)


def test_the_state_counts_what_was_yielded_not_what_was_prefetched(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config(prefetch=5))
    assert stream.state_dict()["step"] == 0
    for number, micro in enumerate(stream):
        state = stream.state_dict()
        assert state == stream.state_after(micro)
        assert state["step"] == number + 1
        assert (state["epoch"], state["parts"]) == (
            micro.epoch,
            [[0, 1, 1, number % stream.steps_per_epoch + 1]],
        )


def rest(dataset: str, state: str, out: str) -> None:
    """What is left of a stream from a state on."""
    stream = VideoStream(open_dataset(dataset), config(), 1, 2)
    stream.load_state_dict(json.loads(state))
    Path(out).write_text(json.dumps([digest(micro) for micro in stream]))


@pytest.mark.parametrize("taken", [1, 4])
def test_a_new_process_goes_on_where_the_state_was_saved(
    dataset: Dataset, folder: Path, ranks: Ranks, tmp_path: Path, taken: int
) -> None:
    stream = VideoStream(dataset, config(), rank=1, world_size=2)
    whole = [digest(micro) for micro in stream]
    stream = VideoStream(dataset, config(), rank=1, world_size=2)
    iterator = iter(stream)
    for _ in range(taken):
        next(iterator)
    state = json.dumps(stream.state_dict())
    iterator.close()
    ended = ranks.run(rest, 1, str(folder), state, str(tmp_path / "rest.json"))
    assert ended.codes == [0], ended.errors
    assert json.loads((tmp_path / "rest.json").read_text()) == whole[taken:]
    assert taken < len(whole)


def test_iterating_again_goes_on(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config())
    first = next(iter(stream))
    assert keys([first, *stream]) == keys(list(VideoStream(dataset, config())))
    assert list(stream) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, r"seed was 3.*stream\.seed"),
        ({"buckets": BUCKETS.model_copy(update={"max_batch": 2})}, r"config was.*stream\.buckets"),
    ],
)
def test_a_state_of_another_configuration_is_refused(
    dataset: Dataset, change: dict[str, object], words: str
) -> None:
    state = VideoStream(dataset, config()).state_dict()
    with pytest.raises(UsageError, match=words):
        VideoStream(dataset, config(**change)).load_state_dict(state)


def test_a_state_fits_any_number_of_threads_and_epochs(dataset: Dataset) -> None:
    state = VideoStream(dataset, config()).state_dict()
    VideoStream(dataset, config(workers=7, prefetch=9, epochs=None)).load_state_dict(state)


def test_a_state_of_another_dataset_is_refused(
    dataset: Dataset, samples: list[Sample], tmp_path: Path
) -> None:
    state = VideoStream(dataset, config()).state_dict()
    other = open_dataset(write(tmp_path, samples[:-2]))
    with pytest.raises(UsageError, match="dataset was"):
        VideoStream(other, config()).load_state_dict(state)


def run_steps(
    dataset: Dataset, settings: StreamConfig, world_size: int, state: dict | None, steps: int
) -> tuple[list[list[Microbatch]], dict]:
    """Some steps of all ranks, from a state that went through JSON, and the state they agree on."""
    streams = [VideoStream(dataset, settings, rank, world_size) for rank in range(world_size)]
    iterators = []
    for stream in streams:
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        iterators.append(iter(stream))
    found = []
    for _ in range(steps):
        step = []
        for iterator in iterators:
            for micro in iterator:
                step.append(micro)
                if micro.ends_step:
                    break
        found.append(step)
    states = [stream.state_dict() for stream in streams]
    for iterator in iterators:
        iterator.close()
    assert all(one == states[0] for one in states)
    return found, states[0]


def test_as_many_microbatches_on_other_ranks_train_the_same_steps(dataset: Dataset) -> None:
    whole, _ = run_steps(dataset, config(microbatches=4), 1, None, 4)
    first, state = run_steps(dataset, config(microbatches=2, policy="dual_constraint"), 2, None, 2)
    rest, _ = run_steps(dataset, config(microbatches=1), 4, state, 2)
    for one, other in zip(whole, [*first, *rest], strict=True):
        digests = [sorted(map(digest, step)) for step in (one, other)]
        assert digests[0] == digests[1]


def test_at_another_world_size_every_sample_of_the_epoch_still_counts_once(dataset: Dataset) -> None:
    state, counted = None, []
    for world_size, microbatches, steps in ((2, 1, 2), (3, 1, 1), (1, 2, 1), (1, 1, 10**6)):
        settings = config(microbatches=microbatches, epochs=1)
        if steps > 100:
            stream = VideoStream(dataset, settings)
            stream.load_state_dict(state)
            found = [list(stream)]
        else:
            found, state = run_steps(dataset, settings, world_size, state, steps)
            assert len(json.dumps(state)) < 4096
        counted += [key for step in found for micro in step if micro.weight for key in micro.keys]
    assert sorted(counted) == [f"key{number:02}" for number in range(SAMPLES)]


def test_after_a_change_within_an_epoch_the_next_one_is_whole(dataset: Dataset) -> None:
    _, state = run_steps(dataset, config(), 2, None, 1)
    stream = VideoStream(dataset, config())
    stream.load_state_dict(state)
    second, wanted = (
        [digest(micro).partition(" ")[2] for micro in found if micro.epoch == 1]
        for found in (stream, VideoStream(dataset, config()))
    )
    assert second == wanted
    assert len(stream.state_dict()["parts"]) == 1


def test_a_new_cost_changes_the_rest_of_the_epoch_and_resumes_exactly(dataset: Dataset) -> None:
    costly = BUCKETS.model_copy(
        update={
            "cost": LinearQuadraticCost(token_s=1, square_s=0),
            "target_step_s": 300.0,
            "memory_tokens": 10**6,
        }
    )
    settings = config(buckets=costly, epochs=1)
    stream = VideoStream(dataset, settings)
    iterator = iter(stream)
    seen = [next(iterator) for _ in range(2)]
    iterator.close()
    assert stream.recalibrate(LinearQuadraticCost(token_s=2, square_s=0))
    state = json.loads(json.dumps(stream.state_dict()))
    rest = list(stream)
    assert max(len(micro.keys) for micro in rest) < max(len(micro.keys) for micro in seen)
    assert sorted(key for micro in [*seen, *rest] for key in micro.keys) == [
        f"key{number:02}" for number in range(SAMPLES)
    ]
    again = VideoStream(dataset, settings)
    again.load_state_dict(state)
    assert [digest(micro) for micro in again] == [digest(micro) for micro in rest]


def test_a_state_stays_small_however_often_an_epoch_changes(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config(microbatches=1))
    accepted = 0
    for number in range(60):
        accepted += stream.recalibrate(LinearQuadraticCost(token_s=1.0 + number / 7, square_s=1e-9 / 7))
        stream.cursor.move(stream.cursor.position.after_step())
    assert 0 < accepted < 60
    assert len(json.dumps(stream.state_dict())) <= 4096


def test_an_epoch_changed_too_often_is_refused_when_it_resumes_not_when_it_is_saved(dataset: Dataset) -> None:
    state, one_by_one = None, BUCKETS.model_copy(update={"max_batch": 1})
    settings = config(buckets=one_by_one)
    for number in range(MAX_SETTINGS):
        stream = VideoStream(dataset, settings)
        if state is not None:
            stream.load_state_dict(state)
        stream.recalibrate(LinearQuadraticCost(token_s=1.0 + number / 7, square_s=1e-9 / 7))
        stream.cursor.move(stream.cursor.position.after_step())
        state = stream.state_dict()
    with pytest.raises(UsageError, match="until it ends, use the ranks"):
        VideoStream(dataset, config(buckets=one_by_one, regime="slot")).load_state_dict(state)
    VideoStream(dataset, settings).load_state_dict(state)


def test_a_state_of_the_most_parts_stays_small(dataset: Dataset) -> None:
    costs = [LinearQuadraticCost(token_s=number + 1 / 7, square_s=1e-9 / 7) for number in range(MAX_SETTINGS)]
    settings = [Setting(policy="dual_constraint", regime="slot", lookahead=1024, cost=cost) for cost in costs]
    parts = [
        EpochSegment(settings[number % MAX_SETTINGS], 1000 + number, 8, 1000 + number)
        for number in range(MAX_PARTS)
    ]
    fingerprint = "ab" * 32
    state = state_of(Position(2**40, 2**20, tuple(parts)), fingerprint, fingerprint, 2**64 - 1)
    assert len(json.dumps(state)) <= 4096
    assert read_state(state).position.parts == tuple(parts)


def test_long_settings_are_refused_before_a_state_grows_beyond_its_bounds(dataset: Dataset) -> None:
    position = VideoStream(dataset, config()).cursor.position
    names = [f"{number:016x}" for number in range(MAX_PARTS)]
    for number, name in enumerate(names):
        cost = LinearQuadraticCost(fixed_s=1 / 7, token_s=number + 1 / 7, square_s=1e-9 / 7)
        shuffle = Shuffle(order="permuted", run=4096)
        setting = position.part.setting.model_copy(
            update={"cost": cost, "revision": name, "shuffle": shuffle}
        )
        changed = position.after_step().going_on(setting, 65536, 1024)
        if not changed.fits_a_state:
            break
        position = changed
    assert 5 < number < MAX_SETTINGS
    assert len(json.dumps(state_of(position, "ab" * 32, "ab" * 32, 2**64 - 1))) <= 4096


def test_the_progress_of_an_epoch_counts_samples_once(dataset: Dataset) -> None:
    for settings, world_size in ((config(microbatches=2), 1), (config(regime="slot", microbatches=3), 2)):
        streams = [VideoStream(dataset, settings, rank, world_size) for rank in range(world_size)]
        assert streams[0].epoch_progress() == (0, SAMPLES, streams[0].steps_per_epoch)
        iterators, done = [iter(stream) for stream in streams], 0
        for number in range(streams[0].steps_per_epoch):
            for iterator in iterators:
                for micro in iterator:
                    done += len(micro.keys) if micro.weight else 0
                    if micro.ends_step:
                        break
            left = streams[0].steps_per_epoch - number - 1
            assert streams[0].epoch_progress() == (done, SAMPLES - done, left)
        for iterator in iterators:
            iterator.close()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "version: Field required"),
        ({"step": -1}, "step"),
        ({"epoch": "3"}, "epoch"),
        ({"version": 99}, "version 99"),
        ({"surprise": 1}, "surprise"),
        ({"parts": []}, "parts"),
        ({"parts": [[0, 1, 1]]}, "parts"),
        ({"parts": [[0, 0, 1, 3]]}, "parts.0.1"),
        ({"parts": [[7, 1, 1, 3]]}, "a setting that is not there"),
        ({"parts": [[0, 1, 1, 10**6]]}, "1000000 steps of the epoch are done, but it has"),
        ({"parts": [[0, 1, 1, 2**62], [0, 2, 1, 0]]}, "steps of part 0 of the epoch are done, but it has"),
        ({"parts": [[0, 2**40, 2**40, 1]]}, "cannot fill"),
        ({"parts": [[0, 2**40, 1, 1], [0, 1, 1, 0]]}, "cannot fill"),
        ({"settings": [{"policy": "fair"}]}, "settings.0.policy"),
    ],
)
def test_what_is_no_state_is_refused(dataset: Dataset, state: dict[str, object], words: str) -> None:
    stream = VideoStream(dataset, config())
    with pytest.raises(UsageError, match=words):
        stream.load_state_dict({**stream.state_dict(), **state} if state else {})
