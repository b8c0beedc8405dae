"""Films whose fragments, clusters, tags or packets are removed, repeated, swapped or overwritten with zeros."""

import random
import re
import struct
from collections.abc import Sequence

CLUSTER = bytes.fromhex("1f43b675")
TS_PACKET = 188


def move_bytes(rng: random.Random, data: bytes, suffix: str) -> tuple[bytes | None, str]:
    """Move a unit of the container, or zero a range where there are few; return bytes (None of few) and words."""
    bounds = bounds_of(data, suffix, rng.choice((1, 7, 40)) if suffix in (".ts", ".mpg", ".flv") else 1)
    action = rng.choice(("remove", "repeat", "zero", "swap", "cut"))
    if len(bounds) < 4:
        bounds, action = range(0, len(data), rng.choice((64, 512, 4096))), "zero"
    if len(bounds) < 4:
        return None, "too few bytes to move"
    at = rng.randrange(1, len(bounds) - 2)
    begin, end, next_end = bounds[at : at + 3]
    middle = {
        "remove": b"",
        "repeat": data[begin:end] * 2,
        "zero": bytes(end - begin),
        "swap": data[end:next_end] + data[begin:end],
        "cut": b"",
    }[action]
    behind = b"" if action == "cut" else data[next_end if action == "swap" else end :]
    return data[:begin] + middle + behind, f"{action} bytes {begin} to {end}"


def bounds_of(data: bytes, suffix: str, together: int = 1) -> Sequence[int]:
    """Return where units of a container begin, rising, so many packets together; the last one may be an end."""
    match suffix:
        case ".mp4" | ".mov":
            return _fragments(data)
        case ".mkv" | ".webm":
            return [found.start() for found in re.finditer(re.escape(CLUSTER), data)]
        case ".ts" | ".mpg":
            return range(0, len(data), together * (TS_PACKET if suffix == ".ts" else 2048))
        case ".flv":
            return _tags(data)[::together]
    return ()


def _fragments(data: bytes) -> list[int]:
    found, at = list[int](), 0
    while at + 8 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        if data[at + 4 : at + 8] == b"moof":
            found.append(at)
        if size < 8:
            break
        at += size
    return [*found, at] if found else found


def _tags(data: bytes) -> list[int]:
    found, at = list[int](), 13
    while at + 11 <= len(data):
        found.append(at)
        at += 15 + int.from_bytes(data[at + 1 : at + 4])
    return found
