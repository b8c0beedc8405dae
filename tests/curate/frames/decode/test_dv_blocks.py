"""Damage of DV, whose frames have one size and whose blocks say what they are."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.cutting import curated
from tests.media import write_video
from tests.thorough import but

FRAMES, BLOCK, BLOCKS = 30, 80, 150
SIZES = {"pal": (720, 576), "ntsc": (720, 480)}


def film(path: Path, system: str = "pal") -> tuple[Path, int]:
    """Write DV of noise-free pictures, and return the bytes of a frame."""
    form, rate = ("yuv420p", Fraction(25)) if system == "pal" else ("yuv411p", Fraction(30000, 1001))
    whole = write_video(
        path.with_suffix(".avi"),
        (FRAMES,),
        size=SIZES[system],
        rate=rate,
        codec="dvvideo",
        pix_fmt=form,
        options={},
    )
    with av.open(str(whole)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    if path.suffix == ".dv":
        path.write_bytes(b"".join(packets))
    elif path.suffix != ".avi":
        with av.open(str(whole)) as source, av.open(str(path), "w") as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    target.mux(packet)
    return path, len(packets[0])


def rows_of(path: Path) -> list[tuple[str, int, int, str]]:
    rate = 25 if "ntsc" not in path.name else 30000 / 1001
    records = curated(path, path.parent / f"out-{path.stem}", spans={"min_clip_s": 0.02})
    return [(r.state, round(r.start_s * rate), round(r.end_s * rate), r.reason) for r, _ in records]


@pytest.mark.parametrize("system", but(("pal",), ["pal", "ntsc"]))
def test_a_frame_within_which_raw_dv_is_cut_off_is_damage(tmp_path: Path, system: str) -> None:
    """FFmpeg fills it up with the frame before."""
    path, size = film(tmp_path / f"{system}.dv", system)
    assert [row[:3] for row in rows_of(path)] == [("kept", 0, FRAMES)]
    cut = path.with_name(f"{system}-cut.dv")
    cut.write_bytes(path.read_bytes()[: 20 * size + 12_000])
    kept, failed = rows_of(cut)
    assert kept[:3] == ("kept", 0, 20)
    assert failed[:3] == ("failed", 20, 21)
    assert "cut off within its last frame" in failed[3]


@pytest.mark.parametrize(
    ("name", "damage"),
    but(
        (("pal.dv", "zeros"), ("pal.avi", "unread")),
        [
            (f"{system}.{kind}", damage)
            for system in SIZES
            for kind in ("dv", "avi", "mov")
            for damage in ("zeros", "unread")
        ],
        (("pal.mov", "zeros"), ("ntsc.dv", "unread"), ("ntsc.avi", "zeros"), ("ntsc.mov", "unread")),
    ),
)
def test_blocks_of_dv_that_are_zeros_or_could_not_be_read_are_damage(
    tmp_path: Path, name: str, damage: str
) -> None:
    path, _ = film(tmp_path / name, name.split(".")[0])
    with av.open(str(path)) as container:
        at = [packet for packet in container.demux(video=0) if packet.size][12].pos
    data = bytearray(path.read_bytes())
    begin = at + 4 * BLOCKS * BLOCK  # of the fifth sequence
    if damage == "zeros":
        data[begin : begin + 40 * BLOCK] = bytes(40 * BLOCK)
    else:
        data[begin + 50 * BLOCK + 3] |= 0xF0  # an error that the recorder left, in a block of video
    path.write_bytes(data)
    kept, failed, after = rows_of(path)
    assert (kept[:3], failed[:3], after[:3]) == (("kept", 0, 12), ("failed", 12, 13), ("kept", 13, FRAMES))
    assert "1 damaged packet" in failed[3]


def test_frames_of_dv_behind_lost_blocks_are_damage(tmp_path: Path) -> None:
    """A reader cannot know where the next frame begins, so none of them is right."""
    path, size = film(tmp_path / "pal.dv")
    data = path.read_bytes()
    path.write_bytes(data[: 20 * size + 24_000] + data[20 * size + 43_200 :])
    kept, *failed = rows_of(path)
    assert kept[:3] == ("kept", 0, 20)
    assert {row[0] for row in failed} == {"failed"}
    assert failed[0][1] == 20
    assert failed[-1][2] > 25  # of the last ones none decodes


def test_few_blocks_that_a_recorder_replaced_stay(tmp_path: Path) -> None:
    """As every old tape has some; of many the picture is a mosaic of two."""
    path, _ = film(tmp_path / "pal.dv")
    blocks = np.frombuffer(path.read_bytes(), np.uint8).reshape(FRAMES, -1, BLOCK).copy()
    video = np.flatnonzero(blocks[0, :, 0] >> 5 == 4)
    for frame, share in ((8, 0.01), (20, 0.2)):
        blocks[frame, video[: int(share * len(video))], 3] |= 0x20  # as the picture before
    path.write_bytes(blocks.tobytes())
    kept, failed, after = rows_of(path)
    assert (kept[:3], failed[:3], after[:3]) == (("kept", 0, 20), ("failed", 20, 21), ("kept", 21, FRAMES))


def test_writers_that_number_no_blocks_are_read(tmp_path: Path) -> None:
    path, size = film(tmp_path / "pal.mov")
    data = path.read_bytes()
    with av.open(str(path)) as container:
        begins = [packet.pos for packet in container.demux(video=0) if packet.size]
    changed = bytearray(data)
    for begin in begins:
        for block in range(size // BLOCK):
            changed[begin + block * BLOCK + 2] = 0
    path.write_bytes(changed)
    assert [row[:3] for row in rows_of(path)] == [("kept", 0, FRAMES)]
