"""Blocks of DV, whose heads say what they hold and whether a tape recorder could read them; FFmpeg looks at neither."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from av.container import InputContainer
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray

_BLOCK, _BLOCKS = 80, 150  # bytes of a block, blocks of a sequence; IEC 61834-2, SMPTE 314M
_SEQUENCES = {120_000: 10, 144_000: 12, 240_000: 10, 288_000: 12}
"""Sequences of a channel by bytes of a frame, where sequences are numbered in all files."""

_VIDEO, _VIDEO_BLOCKS, _AUDIO_EVERY = 4, 135, 16
_UNCONCEALED = (0b0111, 0b1111)
"""States of a block that holds errors; others but 0 are of a picture before or after that fills its place."""

_MOST_CONCEALED = 0.02
"""Share of blocks that a recorder may have replaced: on moving pictures 2 % are about 40 dB, as DV itself is."""


class DvBlocks:
    """Checks of the blocks in packets of one stream.

    A writer that numbers its blocks otherwise is no damage, so numbers count from the first packet that has the usual
    ones.

    Args:
        stream: Video stream that is decoded.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._is_dv = stream.codec_context.codec.canonical_name == "dvvideo"
        # Of a raw stream FFmpeg fills up a last frame that is not whole, with the bytes of the one before.
        self._size = (
            cast(InputContainer, stream.container).size if stream.container.format.name == "dv" else 0
        )
        self._has_usual = False
        at = np.arange(_BLOCKS) - (_BLOCKS - _VIDEO_BLOCKS - 9)  # 9 blocks of sound, each before 15 of video
        self._video = np.flatnonzero((at >= 0) & (at % _AUDIO_EVERY > 0))

    def is_damaged(self, packet: Packet[VideoStream]) -> bool:
        """Return whether pictures of a packet lack blocks, or a recorder could not read some of them."""
        sequence_size = _BLOCK * _BLOCKS
        if not self._is_dv or not packet.size or packet.size % sequence_size:
            return False
        heads = np.frombuffer(bytes(packet), np.uint8).reshape(-1, _BLOCKS, _BLOCK)[:, self._video, :4]
        is_usual = self._is_usual(heads, _SEQUENCES.get(packet.size))
        self._has_usual |= is_usual
        return (self._has_usual and not is_usual) or (is_usual and _is_unread(heads[..., 3] >> 4))

    def is_cut_off(self, packet: Packet[VideoStream]) -> bool:
        """Return whether the end of the file lies within the frame of a packet."""
        if not self._is_dv or not self._size or packet.pos is None:
            return False
        return packet.pos + packet.size > self._size

    def _is_usual(self, heads: NDArray[np.uint8], sequences: int | None) -> bool:
        """Return whether blocks of video, [sequences, 135, 4], have the numbers of their places."""
        is_right = (heads[..., 0] >> 5 == _VIDEO) & (heads[..., 2] == np.arange(_VIDEO_BLOCKS))
        if sequences is not None:
            is_right &= heads[..., 1] >> 4 == (np.arange(len(heads)) % sequences)[:, None]
        return bool(is_right.all())


def _is_unread(states: NDArray[np.integer[Any]]) -> bool:
    """Return whether blocks hold errors, or too many are replaced by those of another picture."""
    return bool(np.isin(states, _UNCONCEALED).any() or (states > 0).mean() > _MOST_CONCEALED)
