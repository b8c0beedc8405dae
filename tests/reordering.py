"""Films of H.264 and HEVC whose headers understate how far frames are moved in coding."""

import re
from pathlib import Path

from tests.media import write_video
from tests.player import ffmpeg

FRAMES = 75
OPTIONS = {
    "libx264": {"x264-params": "bframes=8:b-pyramid=normal:b-adapt=0:keyint=50:ref=4:scenecut=0"},
    "libx265": {"x265-params": "bframes=8:b-pyramid=1:b-adapt=0:keyint=50:log-level=0"},
}
H264_HIGH = 100  # profile_idc of ITU-T H.264, A.2.4


class _Bits:
    """Reader of the bits of a parameter set."""

    def __init__(self, data: bytes) -> None:
        self.bits = "".join(f"{byte:08b}" for byte in data.replace(b"\0\0\3", b"\0\0"))
        self.at = 0

    def take(self, count: int) -> int:
        self.at += count
        return int(self.bits[self.at - count : self.at], 2)

    def golomb(self) -> int:
        zeros = self.bits.index("1", self.at) - self.at
        self.at += zeros
        return self.take(zeros + 1) - 1


def _golomb(value: int) -> str:
    bits = f"{value + 1:b}"
    return "0" * (len(bits) - 1) + bits


def _skip_to_h264_depth(bits: _Bits) -> None:
    """ITU-T H.264, 7.3.2.1.1 and E.1.1, of what x264 writes."""
    bits.take(8)
    profile = bits.take(8)
    bits.take(16)
    bits.golomb()
    if profile >= H264_HIGH:
        for _ in range(3):
            bits.golomb()
        assert bits.take(2) == 0
    bits.golomb()
    assert bits.golomb() == 0
    for _ in range(2):
        bits.golomb()
    bits.take(1)
    for _ in range(2):
        bits.golomb()
    assert bits.take(1) == 1
    bits.take(1)
    if bits.take(1):
        for _ in range(4):
            bits.golomb()
    assert bits.take(1)
    if bits.take(1) and bits.take(8) == 255:  # the shape of pixels
        bits.take(32)
    if bits.take(1):
        bits.take(1)
    if bits.take(1):
        bits.take(4)
        if bits.take(1):
            bits.take(24)
    if bits.take(1):
        bits.golomb(), bits.golomb()
    if bits.take(1):
        bits.take(65)
    assert bits.take(3) == 0
    assert bits.take(2) == 3
    for _ in range(4):
        bits.golomb()


def _skip_to_hevc_depth(bits: _Bits) -> None:
    """ITU-T H.265, 7.3.2.2.1, of what x265 writes."""
    bits.take(16 + 8 + 96)
    bits.golomb()
    assert bits.golomb() == 1
    bits.golomb(), bits.golomb()
    if bits.take(1):
        for _ in range(4):
            bits.golomb()
    for _ in range(3):
        bits.golomb()
    bits.take(1)
    bits.golomb()


def _understated(header: bytes, depth: int, is_h264: bool) -> bytes:
    bits = _Bits(header)
    (_skip_to_h264_depth if is_h264 else _skip_to_hevc_depth)(bits)
    before = bits.at
    assert bits.golomb() > depth
    changed = bits.bits[:before] + _golomb(depth) + bits.bits[bits.at :].rstrip("0")
    changed += "0" * (-len(changed) % 8)
    data = bytes(int(changed[at : at + 8], 2) for at in range(0, len(changed), 8))
    return re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", data).ljust(len(header), b"\0")


def understate(path: Path, depth: int) -> None:
    """Let the one parameter set of an MP4 state that frames are moved by so many at most."""
    data = bytearray(path.read_bytes())
    is_h264 = b"avcC" in data
    unit = 0x67 if is_h264 else 0x42
    box = data.index(b"avcC" if is_h264 else b"hvcC")
    at = next(
        at
        for at in range(box + 10, box + 200)
        if data[at] == unit and (is_h264 or (data[at + 1] == 1 and data[at - 5] & 63 == 33))
    )
    size = int.from_bytes(data[at - 2 : at], "big")
    data[at : at + size] = _understated(bytes(data[at : at + size]), depth, is_h264)
    path.write_bytes(data)


def understated_film(folder: Path, name: str, codec: str = "libx264", depth: int = 0) -> Path:
    """A film of numbered frames whose header says that they are moved by fewer than they are, as a copy of an MP4."""
    film = write_video(folder / "whole.mp4", (FRAMES,), size=(192, 128), codec=codec, options=OPTIONS[codec])
    understate(film, depth)
    bsf = ["-bsf:v", "h264_mp4toannexb"] if name.endswith(".avi") else []
    flags = ["-movflags", "frag_keyframe+empty_moov"] if name.startswith("fragments") else []
    path = folder / name
    if name != "whole.mp4":
        ffmpeg(["-i", str(film), "-c", "copy", *bsf, *flags, str(path)])
        film.unlink()
    return path
