"""Stitching: over-split shots become one again, true cuts stay."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.shots import ColourDetector, ColourDetectorConfig, Transition
from reelweave.curate.shots.score import Counts, analysis_frames, load_truth, score
from reelweave.curate.shots.stitch import SampleEmbeddings, StitchConfig, stitch
from tests.cutting import curated
from tests.filter_footage import encode
from tests.media import CORPUS, NO_CORPUS
from tests.thorough import thorough

CONFIG = StitchConfig(enabled=True)


def film(*scenes: tuple[int, int]) -> SampleEmbeddings:
    """Samples of scenes (seed, frames) with a little noise."""
    samples = SampleEmbeddings(CONFIG)
    number = 0
    for seed, frames in scenes:
        still = (
            np.random.default_rng(seed).integers(0, 256, (9, 16, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
        )
        for _ in range(frames):
            noise = np.random.default_rng(number).integers(-6, 7, still.shape)
            samples.push(number, np.clip(still + noise, 0, 255).astype(np.uint8))
            number += 1
    return samples


def cut(frame: int) -> Transition:
    return Transition(frame - 1, frame, "cut")


def test_a_cut_inside_a_scene_is_taken_back_and_a_true_one_stays() -> None:
    found = stitch([cut(40), cut(80), cut(120)], film((1, 80), (2, 80)), 160, CONFIG)
    assert found == [cut(80)]


def test_a_scene_that_comes_back_is_not_joined_over_another() -> None:
    cuts = [cut(40), cut(80)]
    assert stitch(cuts, film((1, 40), (2, 40), (1, 40)), 120, CONFIG) == cuts


def test_mixed_frames_stay_out_of_clips_even_within_one_scene() -> None:
    fade = Transition(38, 50, "gradual")
    assert stitch([fade], film((1, 100)), 100, CONFIG) == [fade]


def test_cuts_with_no_sample_between_them_go_or_stay_together() -> None:
    cuts = [cut(41), cut(42), cut(43)]
    assert stitch(cuts, film((1, 100)), 100, CONFIG) == []
    assert stitch(cuts, film((1, 42), (2, 58)), 100, CONFIG) == cuts


def test_a_jump_cut_ends_a_clip_unless_stitching_is_asked_for(tmp_path: Path) -> None:
    """Both sides show one scene, a tenth nearer in the second."""
    rng = np.random.default_rng(0)
    scene = cv2.resize(
        rng.integers(0, 256, (12, 20, 3), dtype=np.uint8), (640, 384), interpolation=cv2.INTER_CUBIC
    )
    sides = [
        cv2.resize(scene[192 - height // 2 :][:height, 316 - width // 2 :][:, :width], (256, 144))
        for width, height in ((532, 300), (484, 272))
    ]
    pictures = [
        np.clip(sides[number >= 60] + rng.integers(-2, 3, sides[0].shape), 0, 255).astype(np.uint8)
        for number in range(120)
    ]
    film = encode(tmp_path / "jump.mp4", pictures)
    records = [record for record, _ in curated(film, tmp_path / "a")]
    assert [(record.start_s, record.end_s) for record in records] == [(0, 2.4), (2.4, 4.8)]
    (record, _), *others = curated(film, tmp_path / "b", stitch={"enabled": True})
    assert (record.start_s, record.end_s, others) == (0, 4.8, [])


@thorough
@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize("name", ["originals/nasa_telescope_hdr", "originals/bbb_opening"])
def test_on_real_footage_precision_rises_and_no_cut_is_lost(name: str) -> None:
    truth = load_truth(Path(f"{CORPUS / name}.cuts.json"))
    eager = ColourDetector(ColourDetectorConfig(cut_threshold=0.3))
    samples = SampleEmbeddings(CONFIG)
    for number, picture in enumerate(analysis_frames(CORPUS / f"{name}.mp4", PICTURE)):
        eager.push(picture)
        samples.push(number, picture)
    every = [*range(20, truth.frames - 20, 25)]
    true = {frame for one in truth.transitions for frame in range(one.start_frame - 12, one.end_frame + 13)}
    found = eager.finish()
    taken = {frame for one in found for frame in range(one.start_frame - 8, one.end_frame + 9)} | true
    split = sorted(
        [*found, *(cut(frame) for frame in every if frame not in taken)], key=lambda one: one.start_frame
    )
    before, after = score(truth, split).hard, score(truth, stitch(split, samples, truth.frames, CONFIG)).hard
    assert before.false >= 5
    assert after.recall == before.recall
    assert after.precision > before.precision
    assert isinstance(after, Counts)
