"""Token lengths: the published numbers, sizes that do not divide, whole columns at once."""

import numpy as np
import pytest

from reelweave.loader.buckets.tokens import Compression, sequence_length, visual_tokens

ADAPTIVELOAD = Compression(frames=8, height=16, width=16, causal=True)


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        ((1, 512, 512), 1 * 32 * 32),  # an image
        ((129, 480, 832), 17 * 30 * 52),
        ((8, 480, 832), 1 * 30 * 52),  # no whole group behind the first frame
        ((9, 480, 832), 2 * 30 * 52),
        ((16, 480, 832), 2 * 30 * 52),
        ((1, 481, 833), 31 * 53),  # padded to whole tokens
    ],
)
def test_causal_tokens_follow_adaptiveload(shape: tuple[int, int, int], tokens: int) -> None:
    assert visual_tokens(*shape, ADAPTIVELOAD) == tokens


@pytest.mark.parametrize(("frames", "latent_frames"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_without_causality_a_begun_group_counts(frames: int, latent_frames: int) -> None:
    compression = Compression(frames=4, height=8, width=8, causal=False)
    assert visual_tokens(frames, 8, 8, compression) == latent_frames


def test_a_column_gives_what_its_rows_give() -> None:
    generator = np.random.default_rng(0)
    frames, height, width, text = generator.integers(1, 2000, (4, 500)).astype(np.int32)
    expected = [
        int(text[row]) + int(visual_tokens(frames[row], height[row], width[row], ADAPTIVELOAD))
        for row in range(500)
    ]
    assert sequence_length(text, frames, height, width, ADAPTIVELOAD).tolist() == expected


def test_long_videos_do_not_overflow_the_index_types() -> None:
    frames, side = np.array([2**31 - 1], np.int32), np.array([16384], np.int32)
    assert visual_tokens(frames, side, side, ADAPTIVELOAD)[0] == ((2**31 - 2) // 8 + 1) * 1024 * 1024
