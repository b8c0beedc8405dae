"""A short text and an HTML table with a thumbnail for a sample, as notebooks show them."""

import base64
import html
import io
from collections.abc import Mapping
from typing import Any

_THUMBNAIL = (320, 320)  # pixels at most
_MOST_PIXELS = 1 << 26  # of a decoded frame
_MOST_CHARS = 200  # of a shown value


def summary(row: Mapping[str, Any], clip: bytes | None, suffixes: list[str]) -> str:
    """Return one line about a sample: key, shape, and sizes instead of bytes."""
    size = "no clip" if clip is None else f"clip of {len(clip):,} bytes"
    parts = [f"key={row.get('key', '')!r}", *_shape(row), size, *suffixes]
    return f"Sample({', '.join(parts)})"


def table(row: Mapping[str, Any], clip: bytes | None, suffixes: list[str]) -> str:
    """Return the columns of a sample as HTML, above them the frame in the middle of its clip."""
    shown = {**row, "members": ", ".join(["mp4"] * (clip is not None) + suffixes)}
    rows = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_short(value))}</td></tr>"
        for name, value in shown.items()
    )
    picture = None if clip is None else thumbnail(clip)
    image = (
        ""
        if picture is None
        else f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}">'
    )
    return f"<div>{image}<table>{rows}</table></div>"


def thumbnail(clip: bytes) -> bytes | None:
    """Return a JPEG of at most 320 x 320 pixels of a keyframe near a clip's middle; None if it cannot be decoded."""
    import av
    from PIL import Image

    from reelweave.loader.dataset.colour.sdr import SdrConverter
    from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip

    try:
        with open_clip(clip) as (container, stream):
            if stream.width * stream.height > _MOST_PIXELS:
                return None
            if stream.duration:
                container.seek(stream.duration // 2, stream=stream)
            picture = Image.fromarray(
                SdrConverter()(next(decode_stream(container, stream))).to_ndarray(format="rgb24")
            )
    except (av.FFmpegError, IndexError, StopIteration, ValueError, MemoryError):
        return None
    picture.thumbnail(_THUMBNAIL)
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=80)
    return data.getvalue()


def _shape(row: Mapping[str, Any]) -> list[str]:
    if not {"frames", "height", "width"} <= row.keys():
        return []
    rate = f" at {row['fps']:g} fps" if row.get("fps") else ""
    return [f"{row['frames']} frames of {row['height']}x{row['width']}{rate}"]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."
