"""Check of every bucket's shape before a run begins: a rare one would end it after hours."""

from collections.abc import Iterator, Sequence

from reelweave.loader.read.stream_config import StreamConfig


def check_bucket_shapes(
    stream: StreamConfig, latent: tuple[int, int, int], patch: tuple[int, int, int] = (1, 1, 1)
) -> None:
    """Check that all frames and sizes of a stream divide into latents, and these into patches.

    Args:
        stream: configuration of the stream, with the stages of its curriculum.
        latent: video frames, pixel rows and columns per latent; the first frame has a latent frame of its own.
        patch: latent frames, rows and columns per token.

    Raises:
        ValueError: one does not; the message names its key.
    """
    (t, *sides), (patch_t, *patch_sides) = latent, patch
    step = t * patch_t
    rows, columns = (side * other for side, other in zip(sides, patch_sides, strict=True))
    for key, counts, sizes in _shapes(stream):
        for frames in counts:
            # 1 + n / t latent frames, in whole patches.
            if (frames - 1) % t or (1 + (frames - 1) // t) % patch_t:
                first = 1 + t * (patch_t - 1)
                below = max(first, frames - (frames - first) % step)
                raise ValueError(
                    f"{key}.frames: {frames} frames do not divide into latents of {t} frames and patches of {patch_t}"
                    f" latents: take {first} + a multiple of {step}, such as {below} or {below + step}"
                )
        for height, width in sizes:
            if height % rows or width % columns:
                raise ValueError(
                    f"{key}.sizes: {height}x{width} pixels do not divide into tokens of {rows}x{columns} pixels (latent"
                    f" {sides[0]}x{sides[1]} times patch {patch_sides[0]}x{patch_sides[1]}): take multiples of them,"
                    f" such as {_near(height, rows)}x{_near(width, columns)}"
                )


def _shapes(
    stream: StreamConfig,
) -> Iterator[tuple[str, Sequence[int], Sequence[tuple[int, int]]]]:
    """Yield keys with frames and sizes."""
    yield "stream.buckets", stream.buckets.frames, stream.buckets.sizes
    for index, stage in enumerate(stream.curriculum.root if stream.curriculum else ()):
        yield f"stream.curriculum.{index}", stage.frames or (), stage.sizes or ()


def _near(pixels: int, step: int) -> int:
    return max(step, round(pixels / step) * step)
