"""The weights-free embedding: near for the same scene in other clothes, far for other scenes."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from reelweave.curate.frames.perceptual import DIMENSIONS, PICTURE, describe, embed_pictures, pool
from tests.media import CORPUS, NO_CORPUS
from tests.thorough import beyond


def scene(seed: int) -> Image.Image:
    """A picture of coloured shapes, 320 x 180."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(small).resize((320, 180), Image.Resampling.BICUBIC)).copy()
    for _ in range(6):
        x, y, w, h = rng.integers(0, 250), rng.integers(0, 140), rng.integers(20, 70), rng.integers(20, 40)
        picture[y : y + h, x : x + w] = rng.integers(0, 256, 3)
    return Image.fromarray(picture)


def embedding(picture: Image.Image) -> np.ndarray:
    return embed_pictures(np.asarray(picture)[None]).astype(np.float32)


def turned(picture: Image.Image) -> Image.Image:
    hsv = np.asarray(picture.convert("HSV")).copy()
    hsv[..., 0] += 18  # of 256: 25 degrees
    return ImageEnhance.Color(Image.fromarray(hsv, "HSV").convert("RGB")).enhance(1.25)


@pytest.mark.parametrize(
    "change",
    beyond(
        2,
        [
            lambda picture: picture.crop((8, 4, 304, 170)),
            turned,
            lambda picture: picture.resize((160, 90), Image.Resampling.BOX),
            lambda picture: ImageEnhance.Brightness(picture).enhance(0.8),
            lambda picture: picture.quantize(24).convert("RGB"),
        ],
    ),
    ids=["cropped", "hue", "scaled", "darker", "coarse"],
)
def test_the_same_scene_in_other_clothes_is_near(change) -> None:
    same = [float(embedding(scene(seed)) @ embedding(change(scene(seed)))) for seed in range(12)]
    other = [float(embedding(scene(seed)) @ embedding(change(scene(seed + 100)))) for seed in range(12)]
    assert min(same) > 0.75
    assert min(same) > max(other) + 0.1


def test_embeddings_have_unit_length_whatever_the_picture() -> None:
    for level in (0, 128, 255):
        flat = np.full((2, 90, 160, 3), level, np.uint8)
        assert np.linalg.norm(embed_pictures(flat).astype(np.float32)) == pytest.approx(1, abs=2e-3)
    assert embed_pictures(np.asarray(scene(1))[None]).shape == (DIMENSIONS,)
    assert np.linalg.norm(pool(np.eye(4, 6))) == pytest.approx(1)


def test_a_descriptor_does_not_depend_on_its_neighbours() -> None:
    pictures = np.stack([np.asarray(scene(seed).resize(PICTURE)) for seed in range(33)])
    together = describe(pictures)
    for number in (0, 1, 32):
        assert np.array_equal(describe(pictures[number : number + 1])[0], together[number])


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_frames_of_a_fixed_camera_are_nearer_than_two_films() -> None:
    from reelweave.curate.shots.score import analysis_frames

    def some(name: str) -> np.ndarray:
        frames = analysis_frames(CORPUS / name, PICTURE)
        return describe(np.stack([frame for number, frame in enumerate(frames) if number % 50 == 0]))

    cars, mice = some("originals/parking_lane_cars.mp4"), some("duplicates/other1_a.mp4")
    assert (mice @ mice.T).min() > 0.7
    assert (cars @ mice.T).max() < 0.4
