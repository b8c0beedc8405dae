"""H.264 whose pictures are two coded fields each (PAFF), which no encoder here writes: samples as they are (I_PCM)."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np

from tests.media import numbered_frame
from tests.player import ffmpeg

WIDTH, HEIGHT, GROUP = 160, 128, 25
_START = b"\0\0\0\1"


class _Writer:
    """Bits of a set or a slice (ITU-T H.264, 7.3 and 9.1)."""

    def __init__(self) -> None:
        self.bits: list[int] = []

    def fixed(self, *fields: tuple[int, int]) -> "_Writer":
        for count, value in fields:
            self.bits += [value >> count - 1 - bit & 1 for bit in range(count)]
        return self

    def golomb(self, *values: int) -> "_Writer":
        for value in values:
            bits = (value + 1).bit_length()
            self.fixed((bits - 1, 0), (bits, value + 1))
        return self

    def aligned(self) -> bytes:
        return np.packbits(np.array(self.bits, np.uint8)).tobytes()

    def ended(self) -> bytes:
        return self.fixed((1, 1)).aligned()


def _unit(head: int, content: bytes) -> bytes:
    written, zeros = bytearray((head,)), 0
    for byte in content:
        if zeros >= 2 and byte <= 3:
            written.append(3)
            zeros = 0
        written.append(byte)
        zeros = 0 if byte else zeros + 1
    return bytes(written)


def sets() -> tuple[bytes, bytes]:
    """Sequence and picture set of 160x128 with 50 fields a second."""
    sequence = _Writer().fixed((8, 77), (8, 0), (8, 30)).golomb(0, 0, 0, 4, 1).fixed((1, 0))
    sequence.golomb(WIDTH // 16 - 1, HEIGHT // 32 - 1).fixed((1, 0), (1, 0), (1, 1), (1, 0), (1, 1))
    sequence.fixed((4, 0), (1, 1), (32, 1), (32, 50), (1, 1), (3, 0), (1, 1), (1, 1)).golomb(
        0, 0, 16, 16, 0, 1
    )
    picture = _Writer().golomb(0, 0).fixed((2, 0)).golomb(0, 0, 0).fixed((3, 0)).golomb(0, 0, 0)
    return _unit(0x67, sequence.ended()), _unit(0x68, picture.fixed((3, 4)).ended())


def _field(planes: Sequence[np.ndarray], number: int, bottom: int) -> bytes:
    within = number % GROUP
    is_key = not within and not bottom
    header = _Writer().golomb(0, 7, 0).fixed((4, within % 16), (1, 1), (1, bottom))
    if is_key:
        header.golomb(number // GROUP % 2)
    header.fixed((8, 2 * within + bottom & 255), (2 if is_key else 1, 0)).golomb(0, 1)
    content = b""
    for row in range(HEIGHT // 32):
        for column in range(WIDTH // 16):
            content += (header if not content else _Writer()).golomb(25).aligned()
            content += b"".join(
                plane[row * size : (row + 1) * size, column * size : (column + 1) * size].tobytes()
                for plane, size in zip(planes, (16, 8, 8), strict=True)
            )
    return _unit(0x65 if is_key else 0x61, content + b"\x80")


def field_units(number: int) -> list[bytes]:
    """The two fields of a numbered picture, the top one first."""
    frame = av.VideoFrame.from_ndarray(numbered_frame(number, WIDTH, HEIGHT), "rgb24").reformat(
        format="yuv420p"
    )
    rows = np.clip(frame.to_ndarray(), 1, 254)
    luma, chroma = rows[:HEIGHT], rows[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2)
    return [_field([plane[bottom::2] for plane in (luma, *chroma)], number, bottom) for bottom in (0, 1)]


def write_fields(path: Path, frames: int) -> Path:
    """A film at 25 frames per second, each field of which is a packet of its own."""
    units = [unit for number in range(frames) for unit in field_units(number)]
    raw = b"".join(_START + unit for unit in (*sets(), *units))
    ffmpeg([*["-r", "50", "-f", "h264", "-i", "-", "-c", "copy", "-y"], str(path)], raw)
    return path
