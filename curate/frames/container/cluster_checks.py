"""Checksums of clusters of Matroska (RFC 9559, 5.1; RFC 8794, 11.3.1), which FFmpeg writes and does not look at."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

from av.packet import Packet
from av.video.stream import VideoStream

from reelweave.curate.frames.container.cut_off import CLUSTER, read_head

_TELLING = ("h264", "av1", "ffv1")
"""Codecs whose decoders tell nearly all damage, and nearer than by its cluster of up to 5 s."""

_CHECKSUM = 0xBF
_HEAD_BYTES = 12  # of an element at most: its ID and its size
_BLOCK_BYTES = 1 << 20
_CLUSTER_ID = CLUSTER.to_bytes(4, "big")
_LARGEST = 1 << 24
"""Bytes of a cluster at most; FFmpeg writes up to 5 MB."""
_MOST_TRIED = 64  # places before a packet that look like the beginning of its cluster


class ClusterChecks:
    """Checks of the clusters in which packets of one film lie.

    Args:
        file: File of the film, which is left where it was.
        stream: Stream of the packets.
    """

    def __init__(self, file: BinaryIO, stream: VideoStream) -> None:
        is_telling = stream.codec_context.codec.canonical_name in _TELLING
        self._file = file
        self._is_checked = stream.container.format.name.startswith("matroska") and not is_telling
        self._begin = self._end = 0  # of the cluster that was looked at last
        self._is_wrong = False

    def is_damaged(self, packet: Packet[Any]) -> bool:
        """Return whether the cluster of a packet has a wrong checksum; False where it has none, or needs none."""
        if not self._is_checked or not packet.size or packet.pos is None or packet.pos < 0:
            return False
        if not self._begin <= packet.pos < self._end:
            position = self._file.tell()
            try:
                self._find(packet.pos)
            finally:
                self._file.seek(position)
        return self._is_wrong

    def _find(self, position: int) -> None:
        """Look at the cluster that holds a byte of the file: the next one, or one before a place that was entered."""
        behind = islice(self._clusters_before(position), _MOST_TRIED)
        for begin in chain([self._end] if self._end else [], behind):
            head = read_head(self._read(begin, _HEAD_BYTES), 0)
            if head is None or head[0] != CLUSTER or head[1] is None:
                continue
            end = begin + head[2] + head[1]
            if begin <= position < end:
                self._begin, self._end = begin, end
                self._is_wrong = self._has_wrong_checksum(begin + head[2])
                return
        self._is_checked = self._is_wrong = False  # clusters of no stated size, or damaged heads

    def _clusters_before(self, position: int) -> Iterator[int]:
        """Yield where clusters may begin before a byte, the nearest first; a part of a film is not read up to it."""
        end, first = position, max(0, position - _LARGEST)
        while end > first:
            begin = max(first, end - _BLOCK_BYTES)
            data = self._read(begin, end - begin + len(_CLUSTER_ID) - 1)
            at = data.rfind(_CLUSTER_ID)
            while at >= 0:
                yield begin + at
                at = data.rfind(_CLUSTER_ID, 0, at + len(_CLUSTER_ID) - 1)
            end = begin

    def _has_wrong_checksum(self, at: int) -> bool:
        child = self._read(at, _HEAD_BYTES)
        head = read_head(child, 0)
        if head is None or head[:2] != (_CHECKSUM, 4):
            return False
        begin, checksum, data = at + head[2] + 4, 0, b""
        block = begin
        for block in range(begin, self._end, _BLOCK_BYTES):
            data = self._read(block, min(_BLOCK_BYTES, self._end - block))
            checksum = zlib.crc32(data, checksum)
        is_whole = block + len(data) == self._end  # what is cut off is said elsewhere
        return is_whole and checksum != int.from_bytes(child[head[2] : head[2] + 4], "little")

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)
