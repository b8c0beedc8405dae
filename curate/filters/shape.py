"""Scores of size, rate and length of a clip."""

from curate.filters.sample import ClipSample


def shape_scores(sample: ClipSample) -> dict[str, float]:
    """Return ``duration_s``, ``short_side_px``, ``aspect`` (width / height) and ``fps``."""
    return {
        "duration_s": sample.duration_s,
        "short_side_px": float(min(sample.width, sample.height)),
        "aspect": sample.width / sample.height,
        "fps": sample.fps,
    }
