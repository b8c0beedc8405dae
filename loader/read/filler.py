"""Clips that stand where no sample can be read; their microbatches have weight 0."""

import io
from fractions import Fraction
from functools import lru_cache
from typing import cast

import numpy as np

from reelweave.loader.buckets.assignment import Bucket


@lru_cache(maxsize=64)
def black_clip(bucket: Bucket) -> bytes:
    """Return a black clip of a bucket's shape: MP4, or JPEG for one frame.

    Args:
        bucket: shape of the clip.
    """
    if bucket.frames == 1:
        from PIL import Image

        image = io.BytesIO()
        Image.new("RGB", (bucket.width, bucket.height)).save(image, "JPEG")
        return image.getvalue()
    return _black_video(bucket)


def _black_video(bucket: Bucket) -> bytes:
    import av
    from av.codec import codecs_available
    from av.video.stream import VideoStream

    video = io.BytesIO()
    height, width = bucket.height + bucket.height % 2, bucket.width + bucket.width % 2  # 4:2:0 halves both
    black = np.zeros((height, width, 3), np.uint8)
    codec = "libx264" if "libx264" in codecs_available else "mpeg4"
    with av.open(video, "w", format="mp4") as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=Fraction(25)))
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for _ in range(bucket.frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(black, format="rgb24")))
        container.mux(stream.encode(None))
    return video.getvalue()
