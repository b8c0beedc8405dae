"""Sound whose container orders its channels otherwise than FFmpeg's layouts, which PyAV cannot hold.

PyAV 18 copies such a layout by its pointer and frees it with each copy, so each look at one, and each decoded frame,
corrupts the heap. Nothing but the description in words may be read of it before another layout is set.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream

from reelweave.curate.frames.container.description import described_stream

_OWN_ORDER = re.compile(r": Audio: [^\n]*?, \d+ channels \(([^)\n]+)\)")
_IN_WORDS = (
    "FL FR FC LFE BL BR FLC FRC BC SL SR TC TFL TFC TFR TBL TBC"
    " TBR DL DR WL WR SDL SDR LFE2 TSL TSR BFC BFL BFR"
)
_NAMES = _IN_WORDS.split()
"""Channels by their names in FFmpeg, in its order."""


def settle_layout(stream: AudioStream) -> None:
    """Give the decoder of a stream a layout of FFmpeg's that PyAV can hold, where its container states another.

    Channels without a place, or with one of several, are mixed as those of the usual layout of as many.
    """
    if not (names := _stated(stream)) or stream.codec_context is None:
        return
    stream.codec_context.layout = (
        "+".join(sorted(names, key=_NAMES.index)) if _is_known(names) else f"{len(names)}c"
    )


def channel_order(stream: AudioStream) -> list[int]:
    """Return the place of each channel of FFmpeg's layout in frames of a stream; empty where they are the same.

    Samples of PCM are as the container states; other decoders know their own order.
    """
    names = _stated(stream) if stream.codec_context.codec.name.startswith("pcm_") else []
    if not _is_known(names):
        return []
    order = sorted(range(len(names)), key=lambda channel: _NAMES.index(names[channel]))
    return order if order != sorted(order) else []


def _stated(stream: AudioStream) -> list[str]:
    """Return the names of the channels that a container states, or none where FFmpeg has a name for them all."""
    match = _OWN_ORDER.search(described_stream(stream.container, stream.index))
    return match[1].split("+") if match else []


def _is_known(names: list[str]) -> bool:
    return bool(names) and len(set(names)) == len(names) and set(names) <= set(_NAMES)


def reorder(frame: AudioFrame, order: list[int]) -> AudioFrame:
    """Return a frame with its channels in an order of `channel_order`; planes have FFmpeg's order already."""
    if not order or frame.format.is_planar or frame.layout.nb_channels != len(order):
        return frame
    samples: Any = frame.to_ndarray().reshape(-1, len(order))[:, order].reshape(1, -1)
    ordered = AudioFrame.from_ndarray(np.ascontiguousarray(samples), frame.format.name, frame.layout.name)
    ordered.sample_rate, ordered.pts, ordered.time_base = frame.sample_rate, frame.pts, frame.time_base
    return ordered
