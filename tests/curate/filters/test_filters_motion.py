"""Motion of a clip: the codec's vectors, and the pictures where a codec has none to give."""

import math
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.filters import (
    FilterConfig,
    MotionMeter,
    ScoreConfig,
    decide,
    frame_motion,
    motion_scores,
    scores,
)
from reelweave.curate.filters.flow import flow
from reelweave.curate.filters.vectors import vector_motion
from reelweave.curate.frames.source import open_video
from tests.filter_footage import HEIGHT, RATE, WIDTH, encode, pan, sample_of, still, texture
from tests.media import CORPUS, NO_CORPUS
from tests.thorough import thorough

STEP = 3
SPEED = STEP * RATE / math.hypot(WIDTH, HEIGHT)
CONFIG = ScoreConfig()
VECTOR = np.dtype(
    [
        ("source", "<i4"),
        ("w", "u1"),
        ("h", "u1"),
        ("src_x", "<i2"),
        ("src_y", "<i2"),
        ("dst_x", "<i2"),
        ("dst_y", "<i2"),
        ("flags", "<u8"),
        ("motion_x", "<i4"),
        ("motion_y", "<i4"),
        ("motion_scale", "<u2"),
    ]
)


def block(x: int, y: int, side: int, right: float, down: float = 0, source: int = -1) -> tuple[int, ...]:
    return (source, side, side, 0, 0, x, y, 0, round(-4 * right), round(-4 * down), 4)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"preset": "veryfast"}),
        ("libx264", {"preset": "veryfast", "bf": "0"}),
        ("libx264", {"preset": "veryfast", "bf": "5", "b_strategy": "0"}),
        ("mpeg4", {"qscale": "3", "bf": "2"}),
        ("mpeg2video", {"qscale": "3"}),
    ],
)
def test_vectors_tell_the_speed_of_a_pan_whatever_the_order_of_the_pictures(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    found = motion_scores(
        sample_of(encode(tmp_path / "pan.mkv", pan(50, STEP), codec=codec, options=options))
    )
    assert found["motion"] == pytest.approx(SPEED, rel=0.12)
    assert found["motion_local"] < 0.3 * SPEED
    assert found["motion_source"] == 0


@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9"])
@pytest.mark.parametrize(
    "border",
    [
        pytest.param(((0, 0), (96, 96)), id="pillars"),
        pytest.param(((48, 40), (0, 0)), id="letterbox", marks=thorough),
    ],
)
def test_bars_take_no_part_in_the_motion(
    tmp_path: Path, codec: str, border: tuple[tuple[int, int], ...]
) -> None:
    options = {"cpu-used": "8", "deadline": "realtime", "b": "2000000"} if "vp9" in codec else None
    barred = (np.pad(picture, (*border, (0, 0))) for picture in pan(40, STEP))
    plain = scores(sample_of(encode(tmp_path / "plain.mkv", pan(40, STEP), codec=codec, options=options)))
    inner = scores(sample_of(encode(tmp_path / "bars.mkv", barred, codec=codec, options=options)))
    assert inner["bars_share"] > 0.2
    assert inner["motion_source"] == plain["motion_source"]
    assert inner["motion"] == pytest.approx(plain["motion"], rel=0.1)
    assert inner["motion_local"] == pytest.approx(plain["motion_local"], abs=0.03 * plain["motion"])


def test_bars_do_not_dilute_flicker(tmp_path: Path) -> None:
    def lit(border: int) -> list[np.ndarray]:
        pictures = (
            (picture * (0.8 if at % 2 else 1)).astype(np.uint8) for at, picture in enumerate(still(30))
        )
        return [np.pad(picture, ((0, 0), (border, border), (0, 0))) for picture in pictures]

    plain, inner = (scores(sample_of(encode(tmp_path / f"{border}.mkv", lit(border)))) for border in (0, 96))
    assert inner["bars_share"] > 0.2
    assert inner["flicker"] == pytest.approx(plain["flicker"], rel=0.1)


@pytest.mark.parametrize("codec", ["libvpx-vp9", "mjpeg"])
def test_pictures_tell_the_speed_where_the_codec_keeps_its_vectors(tmp_path: Path, codec: str) -> None:
    options = (
        {"cpu-used": "8", "deadline": "realtime", "b": "2000000"}
        if "vp9" in codec
        else {"qscale": "3", "strict": "unofficial"}
    )
    path = encode(tmp_path / "pan.mkv", pan(40, STEP), codec=codec, options=options)
    found = motion_scores(sample_of(path))
    assert found["motion"] == pytest.approx(SPEED, rel=0.12)
    assert found["motion_local"] < 0.15 * SPEED
    assert found["motion_source"] == 1


@thorough
def test_both_ways_agree_about_a_thing_that_moves_before_a_fixed_camera(tmp_path: Path) -> None:
    def scene() -> list[np.ndarray]:
        thing = texture(160, 160, seed=5)
        pictures = []
        for number in range(50):
            picture = texture().copy()
            picture[64:224, 10 + 4 * number : 170 + 4 * number] = thing
            pictures.append(picture)
        return pictures

    path = encode(tmp_path / "thing.mkv", scene())
    by_codec = motion_scores(sample_of(path))
    without = replace(sample_of(path), motion=None, motion_local=None)
    by_picture = motion_scores(without)
    true = 160 * 160 / (WIDTH * HEIGHT) * 4 * RATE / math.hypot(WIDTH, HEIGHT)
    for found in (by_codec, by_picture):
        assert found["motion"] == pytest.approx(true, rel=0.35)
        assert found["motion_local"] == pytest.approx(found["motion"], rel=0.3)


def test_a_photograph_does_not_move(tmp_path: Path) -> None:
    path = encode(tmp_path / "still.mp4", still(50))
    assert motion_scores(sample_of(path))["motion"] < 0.001


def test_vectors_count_by_the_area_of_their_blocks() -> None:
    blocks = [block(8 + 16 * x, 8 + 16 * y, 16, 0) for x in range(20) for y in range(10)]
    blocks[45:46] = [block(0, 0, 8, 16) for _ in range(4)]
    found = vector_motion(np.array(blocks, VECTOR), 320, 160)
    assert found is not None
    assert found[0] == pytest.approx(16 / 200 / math.hypot(320, 160))


def test_vectors_into_the_future_do_not_count() -> None:
    blocks = [block(8 + 16 * x, 8 + 16 * y, 16, 2) for x in range(20) for y in range(10)]
    future = [block(8 + 16 * x, 8 + 16 * y, 16, -30, source=1) for x in range(20) for y in range(10)]
    diagonal = math.hypot(320, 160)
    assert vector_motion(np.array(blocks + future, VECTOR), 320, 160) == pytest.approx(
        (2 / diagonal, 0), abs=1e-6
    )
    assert vector_motion(np.array(future, VECTOR), 320, 160) is None


def test_a_zoom_is_motion_of_the_camera() -> None:
    blocks = [
        block(x, y, 16, (x - 160) * 0.1, (y - 80) * 0.1) for x in range(8, 320, 16) for y in range(8, 160, 16)
    ]
    found = vector_motion(np.array(blocks, VECTOR), 320, 160)
    assert found is not None
    assert found[1] < 0.05 * found[0]


def test_a_thing_does_not_drag_the_camera_along() -> None:
    blocks = [
        block(x, y, 16, 12 if x < 96 and y < 96 else 0) for x in range(8, 320, 16) for y in range(8, 160, 16)
    ]
    found = vector_motion(np.array(blocks, VECTOR), 320, 160)
    assert found is not None
    assert found[1] == pytest.approx(found[0], rel=0.1)


def test_vectors_that_should_be_there_and_are_not_are_a_failure_and_no_filter(tmp_path: Path) -> None:
    path = encode(tmp_path / "pan.mp4", pan(50))
    sample = sample_of(path, motion_vectors=False)
    found = motion_scores(sample)
    assert found == {"motion_source": 2}
    only = dict.fromkeys(FilterConfig.model_fields) | {"min_motion": 0.01}
    rejection = decide(found, FilterConfig(**only))
    assert rejection is not None
    assert rejection.state == "failed"
    assert "motion vectors" in rejection.reason


def test_each_span_is_measured_on_its_own(tmp_path: Path) -> None:
    path = encode(tmp_path / "two.mp4", [*still(40), *pan(40)], options={"preset": "veryfast", "g": "40"})
    with path.open("rb") as file, open_video(file, motion_vectors=True) as (container, stream):
        meter = MotionMeter(stream.codec_context.name)
        means = []
        for number, frame in enumerate(container.decode(stream), 1):
            meter.push(frame, number / RATE)
            if number % 40 == 0:
                motion = meter.take().motion
                assert motion is not None
                assert len(motion) == 40
                means.append(float(np.nanmean(motion)))
    assert means[0] < 0.0001
    assert means[1] * math.hypot(WIDTH, HEIGHT) == pytest.approx(STEP, rel=0.12)


def test_a_key_frame_has_no_motion_to_tell(tmp_path: Path) -> None:
    path = encode(tmp_path / "pan.mp4", pan(10))
    with path.open("rb") as file, open_video(file, motion_vectors=True) as (container, stream):
        assert frame_motion(next(container.decode(stream))) is None


def test_one_picture_alone_does_not_move(tmp_path: Path) -> None:
    path = encode(tmp_path / "one.mp4", pan(1))
    assert motion_scores(sample_of(path)) == {"motion": 0, "motion_local": 0, "motion_source": 1}


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_two_encodings_of_one_film_move_alike() -> None:
    with av.open(str(CORPUS / "duplicates" / "pair1_b.webm")) as container:
        assert container.streams.video[0].codec_context.name.endswith("vp9")
    a = motion_scores(sample_of(CORPUS / "duplicates" / "pair1_a.mp4"))
    b = motion_scores(sample_of(CORPUS / "duplicates" / "pair1_b.webm"))
    assert (a["motion_source"], b["motion_source"]) == (0, 1)
    assert a["motion"] == pytest.approx(b["motion"], rel=0.5)


@pytest.mark.parametrize("shape", [(2, 2), (1, 256), (256, 3)])
def test_pictures_of_a_few_pixels_have_a_motion_too(shape: tuple[int, int]) -> None:
    grey = np.random.default_rng(0).uniform(0, 255, (3, *shape)).astype(np.float32)
    found = flow(grey)
    assert all(np.isfinite(each).all() and len(each) == 2 for each in (found.motion, found.motion_local))
