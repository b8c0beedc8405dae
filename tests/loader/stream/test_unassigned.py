"""What a stream says of samples that no bucket takes."""

import logging
from pathlib import Path

import pytest
import yaml

from reelweave.loader.blend import Curriculum, CurriculumStage
from reelweave.loader.blend.blend import open_source
from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS, SHAPELESS, config, make_sample, write

LONG = BUCKETS.model_copy(update={"frames": (13,)})


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (one.levelno, one.getMessage())
        for one in caplog.records
        if one.name == "reelweave.loader.stream.checks.unassigned"
    ]


def test_most_of_a_dataset_is_not_left_out_without_a_word(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    VideoStream(dataset, config(buckets=LONG))
    [(level, words)] = said(caplog)
    assert level == logging.WARNING
    seconds = sum(row["frames"] / 25 for row in map(dataset.row, range(18)) if row["frames"] < 13)
    assert words.startswith(
        f"no bucket takes 15 of 18 samples (83.33%, {seconds:,.0f} s), which are never trained on"
    )
    assert f"15 ({seconds:,.0f} s) since 4 to 12 frames, the smallest bucket has 13" in words
    assert "allow 1 frames (15)" in words


def test_only_the_first_rank_says_it(dataset: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    VideoStream(dataset, config(buckets=LONG), 1, 2)
    assert not said(caplog)


def test_below_one_percent_it_is_no_warning(
    samples: list[Sample], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clip, row = samples[0].clip, samples[0].row
    many = [make_sample(f"more{n:03}", clip, row["frames"], (80, 64)) for n in range(120)]
    caplog.set_level(logging.INFO, "reelweave.loader")  # commands of other tests set it
    VideoStream(open_dataset(write(tmp_path, [*many, samples[-1]])), config())
    [(level, words)] = said(caplog)
    assert level == logging.INFO
    assert "takes 1 of 121 samples (0.83%, 0 s)" in words
    assert "4 frames, the smallest bucket has 5" in words


def test_where_buckets_take_all_nothing_is_said(
    samples: list[Sample], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reelweave.loader")  # commands of other tests set it
    whole = [sample for sample in samples if sample.row["key"] != SHAPELESS]
    VideoStream(open_dataset(write(tmp_path, whole)), config(max_unassigned_share=0.0))
    assert not said(caplog)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_share_above_the_limit_is_refused_on_every_rank(dataset: Dataset, rank: int) -> None:
    VideoStream(dataset, config(max_unassigned_share=0.06), rank, 2)
    with pytest.raises(UsageError, match=r"1 of 18 samples .*max_unassigned_share=0.05: change the buckets"):
        VideoStream(dataset, config(max_unassigned_share=0.05), rank, 2)


def test_a_later_stage_counts_too(dataset: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    stages = Curriculum((CurriculumStage(until_step=2), CurriculumStage(frames=(13,))))
    VideoStream(dataset, config(curriculum=stages))
    assert [words.split(" samples")[0] for _, words in said(caplog)] == [
        "no bucket takes 1 of 18",
        "no bucket of stage 1 (stream.curriculum) takes 15 of 18",
    ]
    with pytest.raises(UsageError, match=r"stage 1 .*max_unassigned_share=0.5"):
        VideoStream(dataset, config(curriculum=stages, max_unassigned_share=0.5))


def test_of_a_blend_the_samples_count_that_it_draws(
    dataset: Dataset, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "mix.yaml"
    node = {"path": str(folder), "subset": {"range": [0, 6]}, "weight": 1.0}
    blend = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train": {"blend": [node]}},
    }
    file.write_text(yaml.safe_dump(blend))
    VideoStream(open_source(file), config(buckets=LONG))
    [(_, words)] = said(caplog)
    assert " of 6 samples" in words
