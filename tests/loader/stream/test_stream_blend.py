"""Streams of several datasets, and of runs that change from stage to stage."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from reelweave.loader.batch import Microbatch
from reelweave.loader.blend import Blend, open_blend
from reelweave.loader.dataset import Dataset, Sample
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import SAMPLES, SHAPELESS, config, digest, write
from tests.thorough import thorough


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Blend:
    """Of `few`, 5 samples, and `many`, 12; one of `many` fits no bucket."""
    folder = tmp_path_factory.mktemp("blend")
    for name, part in (("few", samples[:5]), ("many", samples[5:])):
        named = [replace(one, row={**one.row, "key": f"{name}-{one.row['key']}"}) for one in part]
        write(folder / name, named)
    file = folder / "mix.yaml"
    nodes = [{"path": "few", "weight": 3}, {"path": "many", "weight": 1}]
    file.write_text(yaml.safe_dump({"splits": {"train": {"blend": nodes, "epoch_samples": 40}}}))
    return open_blend(str(file))


def by_dataset(microbatches: list[Microbatch]) -> Counter[str]:
    return Counter(key.partition("-")[0] for micro in microbatches if micro.weight for key in micro.keys)


def test_a_blend_is_streamed_by_its_weights(blend: Blend) -> None:
    found = list(VideoStream(blend, config(epochs=3)))
    assert by_dataset(found) == {"few": 90, "many": 30}
    drawn = Counter(key for micro in found if micro.weight for key in micro.keys)
    assert set(drawn.values()) <= {2, 3, 18}
    assert f"many-{SHAPELESS}" not in drawn
    pairs = [pair for micro in found if micro.weight for pair in zip(micro.keys, micro.passes, strict=True)]
    assert len(set(pairs)) == len(pairs) == 120


def test_a_blend_resumes_at_other_ranks_with_every_draw_once(blend: Blend) -> None:
    streams = [VideoStream(blend, config(epochs=1), rank, 2) for rank in range(2)]
    iterators = [iter(stream) for stream in streams]
    found = [next(iterator) for _ in range(3) for iterator in iterators]
    state = json.loads(json.dumps(streams[1].state_dict()))
    for iterator in iterators:
        iterator.close()
    alone = VideoStream(blend, config(epochs=1))
    alone.load_state_dict(state)
    assert by_dataset([*found, *alone]) == {"few": 30, "many": 10}


def test_samples_of_the_same_key_in_two_datasets_draw_numbers_of_their_own(
    tmp_path: Path, samples: list[Sample]
) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, samples[:5])
    file = tmp_path / "mix.yaml"
    nodes = [{"path": "one"}, {"path": "two"}]
    file.write_text(yaml.safe_dump({"splits": {"train": {"blend_epochized": nodes}}}))
    blend = open_blend(str(file))
    for decode in (True, False):
        found = [micro for micro in VideoStream(blend, config(epochs=1, decode=decode)) if micro.weight]
        draws = [
            draw
            for micro in found
            for draw in zip(micro.keys, micro.datasets, micro.draw_keys, micro.passes, strict=True)
        ]
        assert len(draws) == len({(name, passed) for _, _, name, passed in draws}) == 10
        assert Counter(key for key, *_ in draws) == Counter({sample.row["key"]: 2 for sample in samples[:5]})
        # Those of the first dataset are what they are without a blend.
        assert all((key == name) == (dataset == 0) for key, dataset, name, _ in draws)
    for micro in VideoStream(blend.datasets[1], config(epochs=1)):
        assert micro.draw_keys == micro.keys


def stages(*given: dict[str, object]) -> list[dict[str, object]]:
    return list(given)


def test_a_stage_begins_at_its_step_with_its_weights(blend: Blend) -> None:
    settings = config(
        epochs=4,
        curriculum=stages({"until_step": 5, "weights": {"few": 1, "many": 0}}, {"weights": {"few": 0}}),
    )
    found = list(VideoStream(blend, settings))
    assert set(by_dataset([micro for micro in found if micro.step < 5])) == {"few"}
    assert set(by_dataset([micro for micro in found if micro.step >= 5])) == {"many"}
    assert [micro.step for micro in found] == list(range(len(found)))
    assert {micro.epoch for micro in found if micro.step == 4} == {0}
    assert {micro.epoch for micro in found if micro.step == 5} == {1}


def test_weights_that_change_are_met_piece_by_piece_and_resume(blend: Blend) -> None:
    changing = {
        "until_step": 24,
        "weights": {"few": 1, "many": 0},
        "to_weights": {"few": 0, "many": 1},
        "pieces": 4,
    }
    settings = config(epochs=9, curriculum=stages(changing, {"weights": {"few": 0, "many": 1}}))
    found = list(VideoStream(blend, settings))
    shares = []
    for first in (0, 6, 12, 18, 24):
        drawn = by_dataset([micro for micro in found if first <= micro.step < first + 6])
        shares.append(drawn.get("many", 0) / sum(drawn.values()))
    assert shares == sorted(shares)
    assert shares[:4] == pytest.approx([0.125, 0.375, 0.625, 0.875], abs=0.2)
    assert shares[4] == 1
    whole = [digest(micro) for micro in found]
    for taken in (4, 6, 17):
        stream = VideoStream(blend, settings)
        iterator = iter(stream)
        for _ in range(taken):
            next(iterator)
        iterator.close()
        resumed = VideoStream(blend, settings)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert [digest(micro) for micro in resumed] == whole[taken:], taken


def test_other_sizes_hold_for_the_rest_of_the_epoch(dataset: Dataset) -> None:
    settings = config(epochs=2, curriculum=stages({"until_step": 4, "frames": (5,)}, {}))
    found = list(VideoStream(dataset, settings))
    assert {micro.bucket.frames for micro in found if micro.step < 4} == {5}
    assert {micro.bucket.frames for micro in found if micro.step >= 4} == {5, 9}
    for epoch in (0, 1):
        counted = sorted(key for micro in found if micro.epoch == epoch for key in micro.keys if micro.weight)
        assert counted == [f"key{number:02}" for number in range(SAMPLES)]


@thorough
def test_a_curriculum_resumes_exactly_around_its_stages(blend: Blend) -> None:
    settings = config(
        epochs=5,
        curriculum=stages(
            {"until_step": 3, "weights": {"few": 1, "many": 0}, "frames": (5,)},
            {"until_step": 7, "weights": {"few": 1, "many": 0}},
            {},
        ),
    )
    whole = [digest(micro) for micro in VideoStream(blend, settings)]
    for taken in (1, 3, 5, 7, 11):
        stream = VideoStream(blend, settings)
        iterator = iter(stream)
        for _ in range(taken):
            last = next(iterator)
        iterator.close()
        assert stream.state_dict() == stream.state_after(last)
        resumed = VideoStream(blend, settings)
        resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert [digest(micro) for micro in resumed] == whole[taken:], taken


@pytest.mark.parametrize(
    ("curriculum", "words"),
    [
        (stages({"until_step": 3, "weights": {"fwe": 1}}, {}), "curriculum.0: no node .* did you mean few"),
        (stages({"until_step": 3}, {"frames": (5, 5)}), "curriculum.1: .*holds one value twice"),
    ],
)
def test_what_no_stage_can_be_is_refused(blend: Blend, curriculum: list, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        VideoStream(blend, config(curriculum=curriculum))


def test_weights_of_a_dataset_alone_are_refused(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match=r"curriculum.0: a dataset alone has no weights"):
        VideoStream(dataset, config(curriculum=stages({"weights": {"few": 1}})))
