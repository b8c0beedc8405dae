"""A short text and an HTML table with a thumbnail for a sample, as notebooks show them."""

import base64
import html
import io
from collections.abc import Mapping
from typing import Any

_THUMBNAIL_PX = 320  # of the longer side, at most
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
    """Return an upright JPEG of at most 320 x 320 pixels of a keyframe near a clip's middle; None if none decodes."""
    import av
    from PIL import Image

    from reelweave.loader.dataset.samples.frames.upright import key_frames, shown_size, upright_picture
    from reelweave.loader.dataset.samples.frames.video_stream import open_clip

    try:
        with open_clip(clip) as (_, stream):
            if stream.width * stream.height > _MOST_PIXELS:
                return None
        frame, pixel_aspect = next(key_frames(clip, [0.5]))
        size = shown_size(frame, pixel_aspect, clip)
        scale = min(1.0, _THUMBNAIL_PX / max(size))
        height, width = (max(1, round(side * scale)) for side in size)
        picture = Image.fromarray(upright_picture(frame, (height, width), clip))
    except (av.FFmpegError, IndexError, StopIteration, ValueError, MemoryError):
        return None
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
