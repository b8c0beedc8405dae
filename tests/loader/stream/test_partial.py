"""What a stream says of samples that it uses in part."""

import logging
from pathlib import Path

import pytest

from reelweave.loader.blend import Curriculum, CurriculumStage
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS, config, make_sample, write


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [
        (one.levelno, one.getMessage())
        for one in caplog.records
        if one.name == "reelweave.loader.stream.checks.partial"
    ]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (
            (1, 13),
            "15 of 18 samples (83.33%) are clips that train as stills: they offer 4 to 12 frames, and the next",
        ),
        ((1,), None),
        ((4, 13), None),
    ],
)
def test_clips_that_train_as_stills_are_counted(
    frames: tuple[int, ...], words: str | None, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket of one frame is for pictures; clips fall into it where the next bucket has one frame too many."""
    VideoStream(dataset, config(buckets=BUCKETS.model_copy(update={"frames": frames})))
    texts = [text for _, text in said(caplog)]
    assert [text.startswith(words or "") for text in texts] == [True] * (words is not None)
    VideoStream(dataset, config(buckets=BUCKETS.model_copy(update={"frames": frames})), 1, 2)
    assert len(said(caplog)) == len(texts), "the first rank alone says it"


def test_large_crops_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shapes = (
        (64, 64),
        (72, 64),
        (96, 64),
        (64, 120),
        (64, 200),
    )  # crops of 0, 11 %, a third, 47 %; more than a half
    samples = [make_sample(f"key{number}", b"clip", 9, size) for number, size in enumerate(shapes)]
    sizes = BUCKETS.model_copy(update={"sizes": ((64, 64),), "frames": (9,)})
    VideoStream(open_dataset(write(tmp_path / "set", samples)), config(buckets=sizes))
    assert said(caplog) == [
        (
            logging.WARNING,
            "2 of 5 samples (40.00%) lose more than 25% of their picture to the crop that fills their size, at most 47%"
            " (stream.buckets.sizes; max_crop limits it)",
        )
    ]


@pytest.mark.parametrize(
    ("captions", "reads_text"), [(("", " \n", "a wave"), True), (("",), False), (("a wave",), True)]
)
def test_samples_without_a_caption_are_counted(
    captions: tuple[str, ...], reads_text: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that reads no captions has no text tokens in its buckets."""
    samples = [
        make_sample(f"key{index}", b"clip", 9, (64, 64), caption=caption)
        for index, caption in enumerate(captions)
    ]
    buckets = BUCKETS.model_copy(update={"max_text_tokens": BUCKETS.max_text_tokens * reads_text})
    VideoStream(open_dataset(write(tmp_path / "set", samples)), config(buckets=buckets))
    empty = sum(not caption.strip() for caption in captions)
    expected = f"{empty} of {len(captions)} samples ({100 * empty / len(captions):.2f}%) have no caption"
    assert [text.startswith(expected) for _, text in said(caplog)] == [True] * bool(empty and reads_text)


def test_a_later_stage_is_named(dataset: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    stages = Curriculum((CurriculumStage(until_step=2), CurriculumStage(frames=(1, 13))))
    VideoStream(dataset, config(curriculum=stages))
    assert [
        "that train as stills of stage 1 (stream.curriculum): they" in text for _, text in said(caplog)
    ] == [True]
