"""Stills are no films, and a film that a phone put behind one is named."""

import io
import re
import struct
from pathlib import Path

import pytest
from PIL import Image

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError, open_video
from tests.curate.frames.container.test_side_data import box
from tests.media import write_video
from tests.player import ffmpeg


def heic(folder: Path) -> bytes:
    """A picture of HEVC as an item of ISO/IEC 23008-12."""
    path = folder / "still.mp4"
    ffmpeg(f"-f lavfi -i testsrc=s=64x64:d=0.04 -c:v libx265 -x265-params log-level=none -y {path}".split())
    film = path.read_bytes()
    at = film.index(b"hvcC") - 4
    configuration = film[at : at + int.from_bytes(film[at : at + 4], "big")]
    media = film.index(b"mdat")
    coded = film[media + 4 : media - 4 + int.from_bytes(film[media - 4 : media], "big")]
    begin = box(b"ftyp", b"heic\0\0\0\0mif1heic")

    def full(kind: bytes, content: bytes, version: int = 0) -> bytes:
        return box(kind, struct.pack(">Bxxx", version) + content)

    def index(offset: int) -> bytes:
        entry = full(b"infe", struct.pack(">HH", 1, 0) + b"hvc1\0", 2)
        return full(
            b"meta",
            full(b"hdlr", b"\0\0\0\0pict" + bytes(13))
            + full(b"pitm", struct.pack(">H", 1))
            + full(b"iloc", struct.pack(">BBHHHHII", 0x44, 0, 1, 1, 0, 1, offset, len(coded)))
            + full(b"iinf", struct.pack(">H", 1) + entry)
            + box(
                b"iprp",
                box(b"ipco", configuration + full(b"ispe", struct.pack(">II", 64, 64)))
                + full(b"ipma", struct.pack(">IHBBB", 1, 1, 2, 0x81, 2)),
            ),
        )

    return begin + index(len(begin) + len(index(0)) + 8) + box(b"mdat", coded)


def refusal(data: bytes) -> str:
    with pytest.raises(SourceError) as caught, open_video(io.BytesIO(data)):
        pass
    return str(caught.value)


def test_a_heic_is_a_picture_and_no_film_of_a_second(tmp_path: Path) -> None:
    assert refusal(heic(tmp_path)) == (
        "cannot be opened: no video container that is read, it is a HEIC picture"
    )


def test_an_index_refuses_a_heic_whatever_its_name(tmp_path: Path) -> None:
    """Photos of phones are grids, of which FFmpeg shows one tile."""
    with pytest.raises(
        SourceError, match="is a HEIC picture, of which FFmpeg may show a tile alone; convert"
    ):
        probe(heic(tmp_path))
    film = write_video(tmp_path / "film.mp4", (25,)).read_bytes()
    with pytest.raises(SourceError, match=r"a motion photo\): `tail -c"):
        probe(heic(tmp_path) + box(b"mpvd", film))


@pytest.mark.skipif("AVIF" not in Image.registered_extensions().values(), reason="of Pillow 11.3 on")
def test_an_index_counts_a_still_avif_as_an_image() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 90, 30)).save(buffer, "AVIF")
    media = probe(buffer.getvalue())
    assert (media.frames, media.fps, media.duration_s) == (1, 25, 0.04)


@pytest.mark.parametrize("kind", ["Google", "Samsung", "HEIC", "with a gain map"])
def test_a_film_behind_a_picture_is_named_with_its_first_byte(kind: str, tmp_path: Path) -> None:
    film = write_video(tmp_path / "film.mp4", (25,)).read_bytes()
    picture = tmp_path / "a.jpg"
    ffmpeg(f"-f lavfi -i testsrc=s=640x480:d=0.04 -frames:v 1 -y {picture}".split())
    data = {
        "Google": picture.read_bytes() + film,
        "Samsung": picture.read_bytes() + b"\0\0\x30\x0a\x10\0\0\0MotionPhoto_Data" + film + b"SEFT",
        "HEIC": heic(tmp_path) + box(b"mpvd", film),
        "with a gain map": picture.read_bytes() * 2 + film,
    }[kind]
    words = refusal(data)
    assert re.search("it is a (JPEG|HEIC) picture; a film lies behind it", words)
    begin = int(re.search(r"tail -c \+(\d+) FILE", words)[1]) - 1
    assert data[begin:].startswith(film)
    with open_video(io.BytesIO(data[begin:])) as (container, stream):
        assert len(list(container.decode(stream))) == 25


def test_a_photo_with_its_gain_map_is_no_stream_of_pictures(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    ffmpeg(f"-f lavfi -i testsrc=s=64x64:d=0.04 -frames:v 1 -y {path}".split())
    one = path.read_bytes()
    indexed = one[:2] + b"\xff\xe2" + struct.pack(">H", 6) + b"MPF\0" + one[2:] + one
    assert refusal(one * 2).startswith("cannot be opened: it is a raw stream of JPEG pictures")
    assert refusal(indexed).endswith("it is a JPEG picture")


def test_pictures_that_move_are_read(tmp_path: Path) -> None:
    """A sequence of AVIF has an index of films beside its items."""
    path = tmp_path / "a.avif"
    ffmpeg(f"-f lavfi -i testsrc=s=64x64:d=0.4 -c:v libaom-av1 -cpu-used 8 -y {path}".split())
    with path.open("rb") as file, open_video(file) as (container, stream):
        assert len(list(container.decode(stream))) == 10
