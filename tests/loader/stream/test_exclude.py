"""Samples that a list of keys leaves out of a stream."""

from pathlib import Path

import pytest

from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import EVERY_KEY, config

OUT = {"key00", "key03", "key08", "key13"}  # the last three are a whole bucket


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    file = tmp_path / "keys.txt"
    file.write_text("\n".join([*sorted(OUT), "", "key00", "nobody"]) + "\n")
    return file


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("regime", ["step", "slot", "pack"])
def test_listed_samples_are_left_out_and_all_others_count_once(
    dataset: Dataset, listed: Path, regime: str, world_size: int
) -> None:
    settings = config(exclude=listed, regime=regime, epochs=1, max_bad=0, max_bad_share=0.0)
    batches = [
        batch for rank in range(world_size) for batch in VideoStream(dataset, settings, rank, world_size)
    ]
    counted = sorted(key for batch in batches if batch.weight for key in batch.keys)
    assert counted == sorted(set(EVERY_KEY) - OUT)
    assert not any(batch.bad for batch in batches)
    for step in {batch.step for batch in batches}:
        own = [batch for batch in batches if batch.step == step]
        assert sum(batch.weight + batch.missing for batch in own) == pytest.approx(1)
        assert sum(len(batch.keys) for batch in own if batch.weight) == pytest.approx(
            sum(batch.weight for batch in own) * own[0].step_samples
        )


def test_a_list_may_change_in_mid_epoch(dataset: Dataset, listed: Path) -> None:
    first = VideoStream(dataset, config(epochs=1))
    iterator = iter(first)
    seen = [next(iterator), next(iterator)]
    iterator.close()
    rest = VideoStream(dataset, config(epochs=1, exclude=listed))
    rest.load_state_dict(first.state_dict())
    before = [key for batch in seen for key in batch.keys]
    after = [key for batch in rest if batch.weight for key in batch.keys]
    assert sorted([*before, *after]) == sorted((set(EVERY_KEY) - OUT) | (set(before) & OUT))


def test_the_first_rank_says_how_many_and_which_are_unknown(
    dataset: Dataset, listed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    VideoStream(dataset, config(exclude=listed), 1, 2)
    assert "keys.txt" not in caplog.text
    VideoStream(dataset, config(exclude=listed))
    assert f"4 samples are left out, since {listed} (stream.exclude) lists their keys" in caplog.text
    assert f"1 keys of {listed} are those of no sample: nobody" in caplog.text


def test_a_list_that_is_not_there_is_named(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stream\.exclude=.*keys\.txt cannot be read"):
        VideoStream(dataset, config(exclude=tmp_path / "keys.txt"))
