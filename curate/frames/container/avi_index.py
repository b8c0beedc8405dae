"""Pictures that AVI holds at its end: slots of its index without bytes, which FFmpeg's demuxer gives no packet for."""

import struct
from typing import BinaryIO

_MOST_BYTES = 1 << 20  # of the index's end: 65,536 chunks
_ENTRY_BYTES = 16
_MOST_CHUNKS = 64  # before the index; films have five or so


def held_slots(file: BinaryIO, track: int) -> int:
    """Return the number of empty slots behind the last picture of a track, by the film's index; 0 without one.

    Args:
        file: An AVI of one list of chunks, as files below 1 GB are.
        track: Number of the track.
    """
    position = file.tell()
    try:
        return _count_held(_read_index_end(file), f"{track:02d}".encode())
    finally:
        file.seek(position)


def _read_index_end(file: BinaryIO) -> bytes:
    """Return the end of the index, or nothing."""
    file.seek(0)
    _, list_bytes = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
    file.seek(8 + list_bytes + list_bytes % 2)
    if file.read(4) == b"RIFF":  # further lists have indices of their own
        return b""
    at = 12  # behind the head of the list
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            break
        kind, size = struct.unpack("<4sI", head)
        if kind == b"idx1":
            left_out = max(0, size - _MOST_BYTES) // _ENTRY_BYTES * _ENTRY_BYTES
            file.seek(at + 8 + left_out)
            return file.read(size - left_out)
        at += 8 + size + size % 2
    return b""


def _count_held(index: bytes, track: bytes) -> int:
    count = 0
    for at in range(len(index) // _ENTRY_BYTES * _ENTRY_BYTES - _ENTRY_BYTES, -1, -_ENTRY_BYTES):
        kind, _, _, size = struct.unpack_from("<4s3I", index, at)
        if kind[:2] == track and kind[2:] in (b"dc", b"db"):
            if size:
                return count
            count += 1
    return 0
