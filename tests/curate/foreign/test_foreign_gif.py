"""Delays of GIF are those of browsers in the index and in a stream, too."""

import io

import pytest
from PIL import Image

from reelweave.curate.foreign.probe import probe
from reelweave.loader.dataset.samples.frames.shown_frames import read_times
from tests.media import numbered_frame


def moving(delays_ms: list[int]) -> bytes:
    pictures = [Image.fromarray(numbered_frame(number, 96, 64)) for number in range(len(delays_ms))]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "gif", save_all=True, append_images=pictures[1:], duration=delays_ms, loop=0)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("delay_ms", "fps", "lasts_s"), [(10, 10, 2.0), (0, 10, 2.0), (20, 50, 0.4), (100, 10, 2.0)]
)
def test_delays_of_up_to_10_ms_last_100(delay_ms: int, fps: float, lasts_s: float) -> None:
    media = probe(moving([delay_ms] * 20))
    assert (media.frames, media.fps, media.variable_rate) == (20, pytest.approx(fps), False)
    assert media.duration_s == pytest.approx(lasts_s)


def test_frames_of_unequal_delays_have_the_times_of_browsers() -> None:
    data = moving([10, 200, 10, 50, 50, 50])
    times_s = read_times(data)
    assert times_s is not None
    assert times_s.tolist() == pytest.approx([0, 0.1, 0.3, 0.4, 0.45, 0.5])
    media = probe(data)
    assert (media.variable_rate, media.duration_s) == (True, pytest.approx(0.55, abs=0.001))
