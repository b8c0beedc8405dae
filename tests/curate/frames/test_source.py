"""Which of several picture streams is the film."""

import io
import re
import tarfile
from pathlib import Path

import av
import pytest
from av.stream import Disposition

from reelweave.curate.frames.source import SourceError, open_video
from tests.media import numbered_frame
from tests.player import ffmpeg


def film(path: Path, *tracks: tuple[tuple[int, int], int], codec: str = "libx264") -> Path:
    """A file whose picture streams have each a size and a number of frames, shown evenly over two seconds."""
    with av.open(str(path), "w") as container:
        streams = []
        for size, _ in tracks:
            stream = container.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
            stream.codec_context.thread_count = 1
            stream.disposition = Disposition.default
            streams.append(stream)
        for (size, frames), stream in zip(tracks, streams, strict=True):
            for number in range(frames):
                frame = av.VideoFrame.from_ndarray(numbered_frame(number, *size), "rgb24").reformat(
                    format="yuv420p"
                )
                frame.pts = number * 50 // frames
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return path


def chosen(path: Path) -> tuple[int, int]:
    with io.BytesIO(path.read_bytes()) as file, open_video(file) as (container, stream):
        first = next(container.decode(stream))
        assert first.pts == stream.start_time
        return stream.width, stream.height


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "mov"])
@pytest.mark.parametrize("still_first", [True, False])
def test_a_motion_photos_still_is_not_its_film(tmp_path: Path, suffix: str, still_first: bool) -> None:
    tracks = [((320, 240), 1), ((96, 64), 50)]
    path = film(tmp_path / f"a.{suffix}", *(tracks if still_first else reversed(tracks)))
    assert chosen(path) == (96, 64)


def test_a_track_of_thumbnails_is_not_the_film(tmp_path: Path) -> None:
    assert chosen(film(tmp_path / "a.mp4", ((96, 64), 50), ((320, 240), 2))) == (96, 64)


def test_of_two_films_the_larger_one_is_taken(tmp_path: Path) -> None:
    assert chosen(film(tmp_path / "a.mp4", ((96, 64), 50), ((320, 240), 25))) == (320, 240)


def test_a_single_picture_is_taken_where_there_is_no_film(tmp_path: Path) -> None:
    assert chosen(film(tmp_path / "a.mp4", ((96, 64), 1), ((320, 240), 1))) == (320, 240)


@pytest.mark.parametrize("suffix", ["mp4", "mov"])
def test_a_film_without_its_index_says_so(tmp_path: Path, suffix: str) -> None:
    whole = film(tmp_path / f"film.{suffix}", ((96, 64), 50)).read_bytes()
    for end in (whole.index(b"moov") - 4, whole.index(b"moov") + 200):
        with (
            io.BytesIO(whole[:end]) as file,
            pytest.raises(SourceError, match=r"its index \(moov\) is missing or cut off"),
            open_video(file),
        ):
            pass


def test_a_tar_is_called_by_its_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(film(tmp_path / "a.mp4", ((96, 64), 5)), "a.mp4")
    data = (tmp_path / "a.tar").read_bytes()
    with io.BytesIO(data) as file, pytest.raises(SourceError, match="`reelweave index`"), open_video(file):
        pass


@pytest.mark.parametrize("data", [b"words", b"\0\0\0\x08free" * 3, b"ftyp" * 9, bytes(40), b"\0\0\0\x01ftyp"])
def test_what_is_no_film_is_not_taken_for_one_without_an_index(data: bytes) -> None:
    with io.BytesIO(data) as file, pytest.raises(SourceError, match="no video container"), open_video(file):
        pass


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "a PNG picture"),
        (b"RIFF\x10\0\0\0WEBPVP8X" + bytes(99), "a WebP picture"),
        (b"\n<!DOCTYPE html><html>404", "a web page"),
    ],
)
def test_another_kind_of_file_is_called_by_its_name(data: bytes, kind: str) -> None:
    with io.BytesIO(data) as file, pytest.raises(SourceError, match=f"it is {kind}"), open_video(file):
        pass


RAW = {
    "a.m4v": ("-c:v mpeg4 -bf 2 -f m4v", "MPEG-4"),
    "a.obu": ("-c:v libsvtav1 -preset 12 -f obu", "AV1 (OBU)"),
    "a.h263": ("-c:v h263 -f h263", "H.263"),
    "a.mjpeg": ("-c:v mjpeg -f mjpeg", "JPEG pictures"),
    "a.drc": ("-c:v vc2 -f dirac", "Dirac or VC-2"),
    "a.h261": ("-c:v h261 -f h261", "H.261"),
    "a.dnxhd": ("-s 1920x1080 -pix_fmt yuv422p -c:v dnxhd -b:v 120M -f dnxhd", "VC-3 (DNxHD)"),
}
HEADS = {
    "VVC": bytes.fromhex("00000001 0079 000b02008000"),  # ITU-T H.266, 7.4.2.2: parameter sets of a sequence
    "AVS": bytes.fromhex("000001b0 2040 1680 5a12"),  # GY/T 257.1: header of a sequence, Jizhun profile
    "MPEG-4": bytes.fromhex("000001b0 20 000001b5 09"),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_streams_that_are_not_read_are_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    encoder, codec = RAW[name]
    path = tmp_path / name
    ffmpeg(f"-f lavfi -i testsrc2=s=176x144:r=25:d=0.4 -pix_fmt yuv420p {encoder} -y {path}".split())
    words = (
        f"it is a raw stream of {codec}, without a container or times, which is not read; give it a container"
    )
    with path.open("rb") as file, pytest.raises(SourceError, match=re.escape(words)), open_video(file):
        pass


@pytest.mark.parametrize("codec", HEADS)
def test_raw_streams_without_an_encoder_here_are_named(codec: str) -> None:
    with (
        io.BytesIO(HEADS[codec] + bytes(range(256)) * 16) as file,
        pytest.raises(SourceError, match=f"it is a raw stream of {codec},"),
        open_video(file),
    ):
        pass


@pytest.mark.parametrize(
    "encoder", ["libx264 -f h264", "mpeg2video -f mpeg2video", "mpeg1video -f mpeg1video"]
)
def test_other_raw_streams_are_read(encoder: str, tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    ffmpeg(f"-f lavfi -i testsrc2=s=176x144:r=25:d=0.4 -pix_fmt yuv420p -c:v {encoder} -y {path}".split())
    with path.open("rb") as file, open_video(file) as (container, _):
        assert sum(1 for _ in container.decode(video=0)) == 10
