"""The movement of the camera is measured in its own units; things that move by themselves are no camera."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from reelweave.curate.models.camera import CameraConfig, CameraMotion
from reelweave.curate.models.camera_scores import camera_scores
from reelweave.curate.models.custom.types import Clip
from tests.filter_footage import encode, texture

WIDTH, HEIGHT, RATE, COUNT = 160, 90, 8, 21
SCENE = Image.fromarray(texture(480, 360, seed=3)).convert("L")


def filmed(
    pan: float = 0, tilt: float = 0, zoom: float = 0, roll: float = 0, shake: float = 0, thing: bool = False
):
    """Pictures of a camera that moves by so much a second, in the units of the scores."""
    rng = np.random.default_rng(1)
    for number in range(COUNT):
        seconds = (number - COUNT // 2) / RATE
        jolt = rng.normal(0, shake * np.hypot(WIDTH, HEIGHT) / RATE, 2) / 2
        scale, turn = np.exp(-zoom * seconds), np.radians(roll) * seconds
        cos, sin = scale * np.cos(turn), scale * np.sin(turn)
        x = SCENE.width / 2 + pan * seconds * WIDTH + jolt[0]
        y = SCENE.height / 2 + tilt * seconds * HEIGHT + jolt[1]
        left, top = x - cos * WIDTH / 2 - sin * HEIGHT / 2, y + sin * WIDTH / 2 - cos * HEIGHT / 2
        matrix = (cos, sin, left, -sin, cos, top)
        image = SCENE.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
        if thing:
            at = 20 + 4 * number
            ImageDraw.Draw(image).rectangle((at, 30, at + 40, 75), fill=230, outline=20)
        yield np.asarray(image, np.float32)


@pytest.mark.parametrize(
    ("move", "size"),
    [("pan", 0.2), ("pan", -0.05), ("tilt", 0.2), ("zoom", 0.15), ("zoom", -0.1), ("roll", 8.0)],
)
def test_each_movement_has_its_unit_and_is_no_other(move: str, size: float) -> None:
    found = camera_scores(np.stack(list(filmed(**{move: size}))), RATE)
    assert found.pop(f"camera_{move}") == pytest.approx(abs(size), rel=0.15)
    least = {
        "camera_pan": 0.02,
        "camera_tilt": 0.02,
        "camera_zoom": 0.02,
        "camera_roll": 1.0,
        "camera_shake": 0.02,
    }
    assert {name: value for name, value in found.items() if value > least[name]} == {}


def test_a_thing_that_crosses_the_picture_is_no_pan_and_shake_is_no_movement_that_lasts() -> None:
    crossed = camera_scores(np.stack(list(filmed(thing=True))), RATE)
    assert max(crossed["camera_pan"], crossed["camera_zoom"], crossed["camera_shake"]) < 0.02
    shaken = camera_scores(np.stack(list(filmed(shake=0.1))), RATE)
    assert shaken["camera_shake"] > 0.05
    assert shaken["camera_pan"] < 0.02


def test_the_stage_scores_an_encoded_clip(tmp_path: Path) -> None:
    colours = (np.repeat(picture[..., None], 3, axis=2).astype(np.uint8) for picture in filmed(pan=0.2))
    data = encode(tmp_path / "pan.mp4", colours, rate=RATE).read_bytes()
    clip = Clip(data, "key", COUNT, RATE, HEIGHT, WIDTH, COUNT / RATE)
    (found,) = CameraMotion(CameraConfig(), "cpu")([clip])
    assert found.keys() == CameraMotion.scores.keys()
    assert found["camera_pan"] == pytest.approx(0.2, rel=0.15)


def test_flat_pictures_and_a_single_one_have_no_scores() -> None:
    flat = np.full((9, HEIGHT, WIDTH), 90, np.float32)
    assert camera_scores(flat, RATE) == {}
    assert camera_scores(np.stack(list(filmed()))[:1], RATE) == {}
    assert all(np.array_equal(a, b) for a, b in pairwise(filmed()))
    assert set(camera_scores(np.stack(list(filmed())), RATE).values()) == {0.0}
