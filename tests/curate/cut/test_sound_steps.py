"""Sound whose stamps step by less than a packet, as where recordings are joined: it follows them."""

from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import pytest

from reelweave.curate.cut.aac import samples

RATE, SIZE = 48_000, 1024


def sound(offs_s: list[float], stated: int) -> Iterator[av.AudioFrame]:
    """Yield frames with stamps that lie beside those of their samples; the first sample of each is loud."""
    for number, off_s in enumerate(offs_s):
        block = np.zeros((1, SIZE), np.float32)
        block[:, 0] = 0.5
        frame = av.AudioFrame.from_ndarray(block, "fltp", "mono")
        frame.sample_rate, frame.time_base = RATE, Fraction(1, RATE)
        frame.pts, frame.duration = number * SIZE + round(off_s * RATE), stated
        yield frame


def places_s(offs_s: list[float], stated: int = SIZE) -> np.ndarray:
    """Return by how much each frame lies beside its samples in a clip of them all."""
    track = samples(sound(offs_s, stated), Fraction(0), Fraction(len(offs_s) * SIZE, RATE))
    assert track is not None
    heard = np.flatnonzero(track.samples[0] > 0.3)
    assert len(heard) == len(offs_s)
    return (heard - np.arange(len(heard)) * SIZE) / RATE


@pytest.mark.parametrize("step_s", [-0.0133, 0.0107, -0.0186, 0.005])
def test_sound_behind_a_small_step_of_its_stamps_follows_them(step_s: float) -> None:
    places = places_s([0.0] * 40 + [step_s] * 40)
    assert np.abs(places[:38]).max() < 0.001
    assert np.abs(places[-38:] - step_s).max() < 0.001


def test_jitter_of_stamps_moves_no_sound() -> None:
    rng = np.random.default_rng(0)
    jitter = [0.0, *rng.uniform(-0.009, 0.009, 99)]
    assert np.abs(places_s(jitter)).max() < 0.001


def test_stamps_that_count_another_rate_tell_the_time_of_the_first_in_each_packet() -> None:
    """FFmpeg counts AAC in TS by the rate of the header; each packet of TS has the time of its first frame."""
    counted = round(SIZE * 44_100 / 48_000)
    packets = [0.012 - number % 6 * (SIZE - counted) / RATE for number in range(60)]
    places = places_s([0.0] * 40 + packets, counted)
    assert np.abs(places[-50:] - 0.012).max() < 0.001
