"""Frame sampling: which frames, how many there are, and that they never leave the clip."""

import numpy as np
import pytest
from pydantic import ValidationError

from reelweave.loader.buckets.frame_sampling import FrameSampling

MODES = [
    FrameSampling(),
    FrameSampling(mode="all"),
    FrameSampling(mode="stride", stride=3),
    FrameSampling(mode="fps", fps=8),
    FrameSampling(mode="fps", fps=60),
    FrameSampling(mode="fps", fps=23.976),
]


@pytest.mark.parametrize("sampling", MODES, ids=str)
def test_what_is_available_fits_into_the_clip(sampling: FrameSampling) -> None:
    for clip_frames in range(1, 60):
        for fps in (8.0, 23.976, 30.0, 59.94):
            available = int(sampling.available(clip_frames, fps))
            for count in {1, max(1, available // 2), available}:
                numbers = sampling.frames(f"{clip_frames}", clip_frames, fps, count)
                assert len(numbers) == count
                assert numbers[0] >= 0
                assert numbers[-1] < clip_frames
                assert (np.diff(numbers) >= 0).all()


def test_a_window_starts_anywhere_and_the_same_words_start_it_there() -> None:
    starts = [int(FrameSampling().frames(f"5/{number}/key", 12, 25.0, 9)[0]) for number in range(100)]
    assert starts == [int(FrameSampling().frames(f"5/{number}/key", 12, 25.0, 9)[0]) for number in range(100)]
    assert set(starts) == {0, 1, 2, 3}
    # A change breaks every saved state, so it needs a new STATE_VERSION.
    words = [f"{seed}/0/{key}" for seed in (0, 1) for key in ("a", "b")]
    assert [int(FrameSampling().frames(each, 1000, 25.0, 1)[0]) for each in words] == [548, 79, 27, 363]


def test_all_begins_with_the_first_frame() -> None:
    assert FrameSampling(mode="all").frames("any", 40, 25.0, 5).tolist() == [0, 1, 2, 3, 4]


def test_a_stride_leaves_frames_out() -> None:
    sampling = FrameSampling(mode="stride", stride=4)
    assert sampling.available([1, 4, 5, 9], 25.0).tolist() == [1, 1, 2, 3]
    assert np.diff(sampling.frames("any", 40, 25.0, 9)).tolist() == [4] * 8


def test_a_rate_keeps_the_speed() -> None:
    slower, faster = FrameSampling(mode="fps", fps=10), FrameSampling(mode="fps", fps=50)
    assert slower.available(51, 25.0) == 21
    assert np.diff(slower.frames("any", 51, 25.0, 21)[[0, 10, 20]]).tolist() == [25, 25]
    assert faster.frames("any", 4, 25.0, 7).tolist() == [0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "stride"}, "mode stride needs stride"),
        ({"mode": "fps"}, "mode fps needs fps"),
        ({"mode": "all", "fps": 8}, "mode all takes no fps"),
        ({"stride": 0}, "greater than 0"),
        ({"mode": "random"}, "window"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FrameSampling(**given)
