"""Delays of GIF: browsers take up to 10 ms as none, and show such a picture for 100 ms."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cutting import curated, pictures


@pytest.mark.parametrize(("delays_ms", "lasts_s", "fps"), [([10] * 40, 4.0, 10), ([20] * 150, 3.0, 50)])
def test_delays_of_10_ms_last_as_in_browsers(
    delays_ms: list[int], lasts_s: float, fps: int, tmp_path: Path
) -> None:
    shades = [
        Image.fromarray(np.full((64, 96, 3), 20 + index, np.uint8)).quantize(16)
        for index in range(len(delays_ms))
    ]
    path = tmp_path / "a.gif"
    shades[0].save(path, save_all=True, append_images=shades[1:], duration=delays_ms, loop=0, optimize=False)
    ((record, clip),) = curated(path, tmp_path / "out")
    assert (record.state, record.start_s, record.fps) == ("kept", 0, fps)
    assert record.end_s == pytest.approx(lasts_s, abs=0.03)
    assert len(pictures(clip)) == round(lasts_s * fps)
