"""Pictures with transparent pixels over black, as players show them where nothing lies below."""

import numpy as np
from av.video.format import VideoFormat
from av.video.frame import VideoFrame

from reelweave.loader.dataset.colour.chain import Chain


class OverBlack:
    """Converter of frames of one video; it keeps its filters between frames.

    Attributes:
        seen: True when a frame had transparent pixels.
    """

    def __init__(self) -> None:
        self._alpha, self._multiplied = Chain(), Chain()
        self._format, self._has_alpha = "", False
        self.seen = False

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """Return a frame without its alpha, multiplied by it; frames without transparent pixels pass unchanged."""
        if not self.is_transparent(frame):
            return frame
        self.seen = True
        # Straight alpha: what is stored was not multiplied by it.
        steps = ("premultiply=inplace=1", f"format={_without_alpha(frame.format)}")
        return self._multiplied(frame, (*_unpack_filters(frame.format), *steps))

    def is_transparent(self, frame: VideoFrame) -> bool:
        """Return whether a frame has a transparent pixel; formats without alpha are known without a look at pixels."""
        if frame.format.name != self._format:
            self._format = frame.format.name
            parts = frame.format.components
            self._has_alpha = frame.format.has_palette or any(part.is_alpha for part in parts)
        return self._has_alpha and not self._is_opaque(frame)

    def _is_opaque(self, frame: VideoFrame) -> bool:
        alpha = self._alpha(frame, (*_unpack_filters(frame.format), "alphaextract"))
        plane, deep = alpha.planes[0], alpha.format.components[0].bits > 8
        width = plane.line_size // (2 if deep else 1)
        values = np.frombuffer(memoryview(plane), "<u2" if deep else np.uint8).reshape(-1, width)[
            :, : frame.width
        ]
        return bool(values.min() == (1 << alpha.format.components[0].bits) - 1)


def _unpack_filters(form: VideoFormat) -> tuple[str, ...]:
    """Return the filters before those for alpha, which fail on palettes and mistake grey for alpha."""
    if form.name.startswith("ya"):
        return ("format=rgba64le" if form.components[0].bits > 8 else "format=rgba",)
    return ("format=rgba",) if form.has_palette else ()


def _without_alpha(form: VideoFormat) -> str:
    if form.name.startswith(("yuva", "gbrap")):
        return form.name.replace("yuva", "yuv").replace("gbrap", "gbrp")
    deep = max(part.bits for part in form.components) > 8
    if form.name.startswith("ya"):
        return "gray16le" if deep else "gray"
    return "gbrp16le" if deep else "gbrp"
