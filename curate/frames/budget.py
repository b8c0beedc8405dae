"""Bounds on the work that one source may cause, from what it holds itself.

A few bytes can stand for hours: pictures that only repeat, stamps that lie far apart, noise that a decoder makes up.
"""

from curate.frames.probe import ProbeConfig
from curate.frames.source import SourceError

_FREE_PIXELS = 2 * 10**10
"""Pixels that any source may show: 10,000 frames of 1080p, a minute or so of work."""

_FREE_FRAMES = 1000
_FREE_BYTES = 1 << 28


def most_pixels(source_bytes: int, limits: ProbeConfig) -> int:
    """Return how many pixels may be decoded of a source, and how many encoded."""
    return max(_FREE_PIXELS, int(limits.max_pixels_per_byte * source_bytes))


def most_frames(decoded: int, limits: ProbeConfig) -> int:
    """Return how many frames the clips of a source may have together."""
    return max(_FREE_FRAMES, int(limits.max_fill * decoded))


def most_bytes(source_bytes: int, limits: ProbeConfig) -> int:
    """Return how many bytes the clips of a source may take together."""
    return max(_FREE_BYTES, int(limits.max_growth * source_bytes))


def check_pixels(pixels: int, source_bytes: int, limits: ProbeConfig) -> None:
    """Raise `SourceError` for a source that shows too many pixels for its size."""
    if pixels > most_pixels(source_bytes, limits):
        raise SourceError(
            f"shows more than {most_pixels(source_bytes, limits) / 1e9:.3g} billion pixels, and has"
            f" {source_bytes} bytes; probe.max_pixels_per_byte allows {limits.max_pixels_per_byte:g}"
        )


def check_clips(frames: int, decoded: int, pixels: int, source_bytes: int, limits: ProbeConfig) -> None:
    """Raise `SourceError` for clips that would be made from too little.

    Args:
        frames: Of all clips together.
        decoded: Frames of the source.
        pixels: Of one frame of a clip.
        source_bytes: Size of the source.
        limits: What is allowed.
    """
    if frames > most_frames(decoded, limits):
        raise SourceError(
            f"would fill clips of {frames} frames from {decoded} frames that are held;"
            f" probe.max_fill allows {limits.max_fill:g} for each"
        )
    check_pixels(frames * pixels, source_bytes, limits)
