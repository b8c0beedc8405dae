"""Limits on the work that one source may cause, relative to the source's own size.

A few bytes can cause hours of work: repeated pictures, time stamps far apart, noise that a decoder generates.
"""

from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.frames.source import SourceError

_FREE_PIXELS = 2 * 10**10
"""Pixels that any source may show: 10,000 frames of 1080p, about a minute of work."""

_FREE_FRAMES = 1000
_FREE_BYTES = 1 << 28


def most_pixels(source_bytes: int, limits: ProbeConfig) -> int:
    """Return the maximum number of pixels to decode of a source, and to encode."""
    return max(_FREE_PIXELS, int(limits.max_pixels_per_byte * source_bytes))


def most_frames(decoded: int, limits: ProbeConfig) -> int:
    """Return the maximum number of frames of a source's clips together."""
    return max(_FREE_FRAMES, int(limits.max_fill * decoded))


def most_bytes(source_bytes: int, limits: ProbeConfig) -> int:
    """Return the maximum size of a source's clips together, bytes."""
    return max(_FREE_BYTES, int(limits.max_growth * source_bytes))


def check_pixels(pixels: int, source_bytes: int, limits: ProbeConfig) -> None:
    """Raise `SourceError` for a source that shows too many pixels for its size."""
    if pixels > most_pixels(source_bytes, limits):
        raise SourceError(
            f"shows more than {most_pixels(source_bytes, limits) / 1e9:.3g} billion pixels, and has"
            f" {source_bytes} bytes; probe.max_pixels_per_byte allows {limits.max_pixels_per_byte:g}"
        )


def check_clips(frames: int, decoded: int, pixels: int, source_bytes: int, limits: ProbeConfig) -> None:
    """Raise `SourceError` for clips that are too large for their source.

    Args:
        frames: Number of frames of all clips together.
        decoded: Number of frames of the source.
        pixels: Pixels of all these frames.
        source_bytes: Size of the source.
        limits: Limits of accepted sources.
    """
    if frames > most_frames(decoded, limits):
        raise SourceError(
            f"would fill clips of {frames} frames from {decoded} frames that are held;"
            f" probe.max_fill allows {limits.max_fill:g} for each"
        )
    check_pixels(pixels, source_bytes, limits)
