"""Blends whose datasets grow and shrink while a run goes on: every draw of a sample that is there counts once."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import yaml

from reelweave.loader.batch import Microbatch
from reelweave.loader.blend import open_blend
from reelweave.loader.dataset import Sample, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.loaders.step_loader import StepLoader
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.blend.blend_datasets import leaf_keys
from tests.loader.dataset.test_growth import add, take_down
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import BUCKETS, config, write
from tests.thorough import but

ONE_BY_ONE = BUCKETS.model_copy(update={"max_batch": 1})
Steps = list[list[Microbatch]]


def named(samples: list[Sample], keys: list[str]) -> list[Sample]:
    whole = [one for one in samples if one.row["key"] != "tiny"]
    pairs = ((key, whole[number % len(whole)]) for number, key in enumerate(keys))
    return [
        # Sources of other bytes: a take-down reaches all names of the same ones.
        replace(
            one, row={**one.row, "key": key, "source": key, "source_sha256": f"{crc32(key.encode()):064x}"}
        )
        for key, one in pairs
    ]


@pytest.fixture
def folder(tmp_path: Path, samples: list[Sample]) -> Path:
    """Datasets `a` of 8 samples and `b` of 5."""
    for name, count in (("a", 8), ("b", 5)):
        write(tmp_path / name, named(samples, [f"{name}{number:02}" for number in range(0, 2 * count, 2)]))
    return tmp_path


def mix(folder: Path, **node: object) -> Path:
    file = folder / "mix.yaml"
    file.write_text(yaml.safe_dump({"splits": {"train": node}}))
    return file


def step_on(
    file: Path, settings: StreamConfig, ranks: int, state: dict | None, steps: int
) -> tuple[Steps, dict]:
    return run_steps(open_blend(file), settings, ranks, state, steps)  # type: ignore[arg-type]


def keys_of(file: Path) -> list[str]:
    blend = open_blend(file)
    return [blend.key(row) for row in range(len(blend.plan_index))]


def counted(steps: Steps, epoch: int | None = None) -> Counter[str]:
    some = (micro for step in steps for micro in step if micro.weight and epoch in (None, micro.epoch))
    return Counter(key for micro in some for key in micro.keys)


def test_every_sample_of_a_grown_source_has_its_repetitions(folder: Path, samples: list[Sample]) -> None:
    file = mix(folder, blend_epochized=[{"path": "a", "repetitions": 2}, {"path": "b"}])
    settings = config(epochs=3, decode=False)
    first, state = step_on(file, settings, 2, None, 2)
    add(folder / "a", named(samples, ["a01", "a15"]))
    second, state = step_on(file, settings, 1, state, 1)
    gone = sorted(key for key in counted(first) if key.startswith("b"))[0]
    take_down(folder / "b", gone)
    third, state = step_on(file, settings, 2, state, 10**4)
    found = first + second + third
    alive = {key: 2 if key.startswith("a") else 1 for key in keys_of(file)}
    for epoch in range(3):
        assert counted(found, epoch) == Counter(alive) + Counter({gone: 1} if epoch == 0 else {})


def test_the_weights_hold_and_a_pass_goes_on_with_the_samples_that_are_there(
    folder: Path, samples: list[Sample]
) -> None:
    nodes = [{"path": "a", "weight": 1}, {"path": "b", "weight": 3}]
    file = mix(folder, blend=nodes, epoch_samples=8)
    settings = config(epochs=24, decode=False, buckets=ONE_BY_ONE)
    found, state = step_on(file, settings, 1, None, 11)  # in the middle of the second epoch
    before = counted(found)
    add(folder / "a", named(samples, ["a01", "a15"]))
    take_down(folder / "b", max(before, key=lambda key: (key > "b", before[key])))
    rest, state = step_on(file, settings, 2, state, 10**4)
    for epoch in range(24):
        by_source = Counter(key[0] for key in counted(found + rest, epoch).elements())
        assert by_source == {"a": 2, "b": 6}
    # Five passes over `a`: 10 draws of 8 samples and 10 that are there since the second epoch.
    counts = counted(found + rest)
    of_a = {key: counts[key] for key in keys_of(file) if key.startswith("a")}
    assert sum(of_a.values()) == 48
    assert set(of_a.values()) == {4, 5}


def test_a_running_stream_adopts_what_a_resumed_one_reads(folder: Path, samples: list[Sample]) -> None:
    file = mix(folder, blend=[{"path": "a"}, {"path": "b", "weight": 2}])
    settings = config(epochs=2, decode=False)
    stream = VideoStream(open_blend(file), settings)
    iterator = iter(stream)
    next(iterator)
    iterator.close()
    state = stream.state_dict()
    add(folder / "b", named(samples, ["b01"]))
    later = open_blend(file)
    stream.adopt(later)
    resumed = VideoStream(later, settings)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert stream.state_dict() == resumed.state_dict()
    assert [micro.keys for micro in stream] == [micro.keys for micro in resumed]


def test_loaders_around_a_grown_blend_go_on_with_it(folder: Path, samples: list[Sample]) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    file, settings = (
        mix(folder, blend_epochized=[{"path": "a"}, {"path": "b"}]),
        config(epochs=1, decode=False),
    )
    stream = VideoStream(open_blend(file), settings)
    steps = iter(StepLoader(stream))
    found = [list(next(steps).batches)]
    stream.load_state_dict(stream.state_dict())
    loader = StatefulDataLoader(stream, batch_size=None, num_workers=0)
    batches = iter(loader)
    found.append([next(batches)])
    state = loader.state_dict()
    add(folder / "a", named(samples, ["a01", "a15"]))
    later = VideoStream(open_blend(file), settings)
    later.load_state_dict(state)
    found += (list(step.batches) for step in StepLoader(later, processes=1, start="fork"))
    assert counted(found) == Counter(keys_of(file))


def test_another_blend_and_ranges_that_shrank_are_refused_in_words(
    folder: Path, samples: list[Sample]
) -> None:
    settings = config(epochs=2, decode=False)
    parts = [{"path": "a", "subset": {"range": ["0%", "50%"]}}, {"path": "b"}]
    file = mix(folder, blend_epochized=parts)
    _, state = step_on(file, settings, 1, None, 1)
    add(folder / "a", named(samples, ["a01", "a15"]))
    rest, _ = step_on(file, settings, 1, state, 10**4)
    # Half of ten samples, which may be others than half of the eight before.
    assert set(counted(rest, 1)) == {key for leaf in leaf_keys(open_blend(file)) for key in leaf}
    with pytest.raises(UsageError, match="cannot resume: the blend has other weights, ranges or datasets"):
        step_on(
            mix(folder, blend_epochized=[*parts[:1], {"path": "b", "repetitions": 2}]), settings, 1, state, 1
        )
    take_down(folder / "a", "a02")
    with pytest.raises(UsageError, match=r"samples were removed from .*/a, of which the blend takes a range"):
        step_on(mix(folder, blend_epochized=parts), settings, 1, state, 1)


def growths(folder: Path, seed: int) -> Iterator[tuple[str, list[str], bool]]:
    """Random changes of a random source: keys that come, or one that goes."""
    generator = np.random.default_rng(seed)
    while True:
        name = str(generator.choice(["a", "b"]))
        keys = sorted(open_dataset(folder / name).row_numbers)
        if generator.random() < 0.4 and len(keys) > 3:
            yield name, [str(generator.choice(keys))], False
        else:
            fresh = {
                f"{name}{number:03}" for number in generator.integers(200, 999, generator.integers(1, 4))
            }
            yield name, sorted(fresh), True


BLENDS = {
    "repetitions": {"blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b"}]},
    "fractions": {"blend_epochized": [{"path": "a", "repetitions": 1.5}, {"path": "b", "repetitions": 0.4}]},
    "weights": {"blend": [{"path": "a", "weight": 2}, {"path": "b", "weight": 1}]},
    "few": {"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 2}], "epoch_samples": 7},
    "twice": {"blend": [{"path": "a", "weight": 1}, {"path": "a", "weight": 2}, {"path": "b"}]},
}


@pytest.mark.parametrize(
    ("kind", "seed"),
    but(
        [("few", 0)],
        product(BLENDS, range(4)),
        [("fractions", 1), ("weights", 3)],
    ),
)
def test_random_changes_and_resumes_draw_every_sample_evenly(
    folder: Path, samples: list[Sample], kind: str, seed: int
) -> None:
    """Whatever comes, goes or resumes, a draw goes to a sample that no other of its source lags behind."""
    file, generator = mix(folder, **BLENDS[kind]), np.random.default_rng([seed, 7])
    changes, state, found = growths(folder, seed), None, list[list[Microbatch]]()
    came, went = dict.fromkeys(keys_of(file), (0, 0)), dict[str, int]()
    for _ in range(12):
        settings = config(
            epochs=None,
            decode=False,
            microbatches=int(generator.integers(1, 3)),
            buckets=ONE_BY_ONE if seed % 2 else BUCKETS,
            regime=str(generator.choice(["step", "slot"])) if seed % 3 == 2 else "step",
        )
        ranks = int(generator.integers(1, 4))
        steps, state = step_on(file, settings, ranks, state, int(generator.integers(0, 7)))
        found += steps
        assert len(json.dumps(state)) <= 4096
        if generator.random() < 0.8:
            name, keys, more = next(changes)
            if more:
                add(folder / name, named(samples, keys))
                came |= dict.fromkeys(keys, (state["epoch"], len(found)))
            else:
                take_down(folder / name, keys[0])
                went[keys[0]] = state["epoch"]
    steps, state = step_on(file, settings, 2, state, 12)
    found += steps
    drawn = [
        (number, micro.epoch, key, passed)
        for number, step in enumerate(found)
        for micro in step
        if micro.weight
        for key, passed in zip(micro.keys, micro.passes, strict=True)
    ]
    assert len({(key, passed) for _, _, key, passed in drawn}) == len(drawn)
    last = state["epoch"]
    if kind == "repetitions":
        for epoch in range(last):
            counts = Counter(key for _, own, key, _ in drawn if own == epoch)
            for key, (first, _) in came.items():
                times = 2 if key.startswith("a") else 1
                if first <= epoch < went.get(key, last):
                    assert counts[key] == times, (key, epoch)
                assert counts[key] <= times
    if kind == "few":
        for epoch in range(1, last):
            counts = Counter(key[0] for _, own, key, _ in drawn if own < epoch)
            assert abs(counts["a"] - epoch * 7 / 3) < 1
            assert counts.total() in (7 * epoch, 7 * epoch - 1)
    if kind != "twice":
        assert_even(drawn, came, went, last)


def assert_even(
    drawn: list[tuple[int, int, str, int]], came: dict[str, tuple[int, int]], went: dict[str, int], last: int
) -> None:
    """In each epoch no sample of a source was drawn, after the epoch's last change, ahead of one that lags."""
    for source in "ab":
        level = dict[str, int]()
        for epoch in range(last):
            base = min(level.values(), default=0)
            level |= {key: base for key, (first, _) in came.items() if first == epoch and key[0] == source}
            changed = max((step for first, step in came.values() if first == epoch), default=0)
            after = set[str]()
            for step, own, key, _ in drawn:
                if own == epoch and key in level:
                    level[key] += 1
                    if step >= changed:
                        after.add(key)
            for key in [key for key in level if went.get(key, last) <= epoch]:
                del level[key]
            low = min(level.values())
            assert all(level[key] <= low + 1 for key in after if key in level), (source, epoch, level)
