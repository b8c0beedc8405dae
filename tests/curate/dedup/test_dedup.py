"""Duplicates: found in every disguise, never among look-alikes, and the best of each group is kept."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from av.video.reformatter import VideoReformatter
from PIL import Image, ImageEnhance

from reelweave.curate import dedup as deduplication
from reelweave.curate.dedup import DedupConfig, Duplicate, ManyPairs
from reelweave.curate.dedup.fingerprint import Match, dense, overlap, print_picture
from reelweave.curate.filters import ScoreConfig
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.perceptual import embed_pictures
from reelweave.curate.frames.source import open_video
from reelweave.curate.source_pass.sampling import PictureCollector
from tests.curate.dedup.items import DedupItem, columns
from tests.media import CORPUS, NO_CORPUS
from tests.thorough import beyond

CONFIG = DedupConfig()
SEMANTIC = DedupConfig.model_validate({"perceptual": {"enabled": False}, "semantic": {"enabled": True}})


def item(key: str, pictures: np.ndarray | None = None, **changes: object) -> DedupItem:
    values: dict = {"sha256": key, "source": f"{key}.mp4", "quality": (1.0,)}
    if pictures is not None:
        own = dense(np.stack([print_picture(picture) for picture in pictures]))
        values["fingerprint"] = lambda: own
        values["global_embedding"] = embed_pictures(pictures)
    return DedupItem(key, **{**values, **changes})


def dedup(
    items: Sequence[DedupItem], config: DedupConfig, older: Sequence[DedupItem] = ()
) -> dict[str, Duplicate]:
    return deduplication.dedup(columns(items, older), config)


def contaminated(
    items: Sequence[DedupItem], evaluation: Sequence[DedupItem], config: DedupConfig
) -> dict[str, Duplicate]:
    return deduplication.find_contaminated(columns(items), columns(evaluation), config)


@cache
@cache
def footage(name: str) -> np.ndarray:
    """Two pictures a second of a file of the corpus, uint8 [n, h, w, 3], long side 256."""
    scaler, pictures = VideoReformatter(), []
    with (CORPUS / name).open("rb") as file, open_video(file) as (container, stream):
        rate = float(stream.average_rate or 25)
        for number, frame in enumerate(Decoder(container, stream).frames()):
            if number / rate + 1e-9 >= len(pictures) / 2:
                scale = 256 / max(frame.width, frame.height)
                size = round(frame.width * scale), round(frame.height * scale)
                pictures.append(scaler.reformat(frame, *size, "rgb24", interpolation="AREA").to_ndarray())
    return np.stack(pictures)


def pieces(name: str, pictures: int = 12) -> Iterator[np.ndarray]:
    whole = footage(name)
    for first in range(0, len(whole) - 5, pictures):
        yield whole[first : first + pictures]


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_the_pairs_of_the_corpus_are_found_and_nothing_else() -> None:
    truth = json.loads((CORPUS / "duplicates.json").read_text())
    names = sorted(str(path.relative_to(CORPUS)) for path in (CORPUS / "duplicates").iterdir())
    names += [
        f"originals/{name}" for name in ("parking_lane_cars.mp4", "highway_bridge.avi", "bottles_vfr.mp4")
    ]
    items = [item(f"{name}@{number}", part) for name in names for number, part in enumerate(pieces(name))]
    found = dedup(items, CONFIG)
    files = {frozenset((key.split("@")[0], twin.of.split("@")[0])) for key, twin in found.items()}
    assert files == {frozenset(pair["files"]) for pair in truth["pairs"]}
    assert min(twin.score for twin in found.values()) > 0.9


CHANGES = {
    "scaled": lambda picture: picture.resize((128, 72)).resize(picture.size),
    "cropped": lambda picture: picture.crop((10, 4, 250, 135)).resize(picture.size),
    "darker": lambda picture: ImageEnhance.Brightness(picture).enhance(0.75),
    "colourless": lambda picture: ImageEnhance.Color(picture).enhance(0.0),
    "coarse": lambda picture: picture.quantize(16).convert("RGB"),
}


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize("change", beyond(1, CHANGES.values()), ids=CHANGES)
def test_footage_nobody_tuned_for_is_found_in_disguise(change) -> None:
    for name in ("originals/chaplin_policeman.mp4", "montages/montage_01.mp4"):
        part = next(pieces(name))
        disguised = np.stack([np.asarray(change(Image.fromarray(picture))) for picture in part])
        assert dedup([item("a", part), item("b", disguised)], CONFIG).keys() == {"b"}


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_a_piece_of_a_longer_clip_is_a_duplicate_and_the_longer_one_stays() -> None:
    whole = footage("originals/chaplin_policeman.mp4")
    items = [item("long", whole, quality=(1.0,)), item("piece", whole[4:12], quality=(2.0,))]
    assert dedup(items, CONFIG) == {}  # the better one is too short to stand for the longer
    items = [item("long", whole, quality=(2.0,)), item("piece", whole[4:12], quality=(1.0,))]
    assert dedup(items, CONFIG).keys() == {"piece"}


def filmed(name: str, begin_s: float, seconds: float) -> np.ndarray:
    """Fingerprint of a stretch of a file of the corpus, from its frames as they fall."""
    scaler, collector = VideoReformatter(), PictureCollector("none", ScoreConfig())
    with (CORPUS / name).open("rb") as file, open_video(file) as (container, stream):
        frame_s = 1 / float(stream.average_rate or 25)
        for number, frame in enumerate(Decoder(container, stream).frames()):
            since_s = number * frame_s - begin_s
            if since_s >= seconds:
                break
            if since_s >= 0:
                small = scaler.reformat(frame, 256, 144, "yuv420p", interpolation="AREA")
                collector.push(since_s, frame_s, frame, small)
    return collector.take().fingerprint


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize(
    ("name", "least"),
    beyond(
        1,
        [
            ("originals/chaplin_policeman.mp4", 0.9),
            ("originals/parking_lane_cars.mp4", 0.7),
            ("originals/bbb_opening.mp4", 0.9),
        ],
    ),
)
def test_a_piece_is_found_at_whatever_fraction_of_a_second_it_begins(name: str, least: float) -> None:
    whole = filmed(name, 0, 8)
    for begin_s in (1.0, 1.12, 1.3, 1.4, 1.56):
        match = overlap(whole, filmed(name, begin_s, 5), 0.7)
        assert match is not None
        assert match.agreement > least, begin_s


def test_the_best_is_kept_whatever_the_order() -> None:
    rows = [(640, 360, 900_000), (1920, 1080, 2_000_000), (1920, 1080, 3_000_000)]
    items = [
        item(f"k{number}", sha256="same", quality=(width * height, size))
        for number, (width, height, size) in enumerate(rows)
    ]
    for seed in range(5):
        random.Random(seed).shuffle(items)
        found = dedup(items, CONFIG)
        assert {key: twin.of for key, twin in found.items()} == {"k0": "k2", "k1": "k2"}


def test_older_clips_are_never_dropped_and_win() -> None:
    old = [item("old1", sha256="same"), item("old2", sha256="same")]
    found = dedup([item("new", sha256="same", quality=(99.0,))], CONFIG, old)
    assert found.keys() == {"new"}
    assert found["new"].of in ("old1", "old2")


def test_likeness_is_not_passed_on() -> None:
    angles = np.deg2rad([0, 12, 24])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    items = [item(f"k{number}", embedding=vector) for number, vector in enumerate(vectors)]
    found = dedup(items, SEMANTIC)
    assert {key: twin.of for key, twin in found.items()} == {"k1": "k0"}


def test_a_duplicate_points_at_what_is_kept_at_last() -> None:
    one = np.array([1.0, 0.0], np.float32)
    items = [
        item("a", embedding=one, quality=(3.0,)),
        item("b", sha256="x", embedding=one, quality=(2.0,)),
        item("c", sha256="x", embedding=one, quality=(1.0,)),
    ]
    found = dedup(items, SEMANTIC)
    assert {key: twin.of for key, twin in found.items()} == {"b": "a", "c": "a"}


def test_evaluation_footage_in_a_dataset_is_named() -> None:
    ours = [item("a"), item("b", sha256="b"), item("b2", sha256="b")]
    found = contaminated(ours, [item("eval", sha256="b")], CONFIG)
    assert {key: twin.of for key, twin in found.items()} == {"b": "eval", "b2": "eval"}


def test_the_evaluation_clip_named_is_the_nearest_one() -> None:
    angles = np.deg2rad([0, 5, 40])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    evaluation = [item("far", embedding=vectors[2]), item("near", embedding=vectors[1])]
    ours = [item("a", embedding=vectors[0]), item("b", embedding=-vectors[0])]
    found = contaminated(ours, evaluation, SEMANTIC)
    assert {key: (twin.of, twin.kind) for key, twin in found.items()} == {"a": ("near", "semantic")}


@pytest.mark.parametrize("least", beyond(1, [7, 1, 10_000]))
def test_many_pairs_compared_at_once_give_what_one_after_the_other_gives(least: int) -> None:
    rng = np.random.default_rng(0)
    items = []
    for number in range(7):
        scene = np.kron(rng.integers(30, 220, (18, 40, 3)), np.ones((8, 8, 1))).astype(np.int16)
        for copy in range(1 + number % 4):
            first = copy % 2  # a later start
            frames = [scene[:, 4 * time : 4 * time + 256] for time in range(first, 8)]
            noisy = np.stack(frames) + rng.integers(-3, 4, (len(frames), 144, 256, 3))
            quality = (float(rng.integers(100)),)
            items.append(item(f"k{number}.{copy}", noisy.clip(0, 255).astype(np.uint8), quality=quality))
    clips = columns(items)
    expected = deduplication.dedup(clips, CONFIG)
    assert len(expected) >= 6
    asked: list[int] = []

    def match(pairs: Sequence[tuple[int, int]], min_overlap: float) -> list[Match | None]:
        asked.append(len(pairs))
        return [overlap(clips.fingerprint(one), clips.fingerprint(two), min_overlap) for one, two in pairs]

    assert deduplication.dedup(replace(clips, many=ManyPairs(least, match)), CONFIG) == expected
    assert bool(asked) == (least < 10_000)
