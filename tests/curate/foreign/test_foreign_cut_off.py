"""Media whose last part is missing, as after a download that broke off, are left out in words."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.loader.errors import RunError
from reelweave.loader.read.decode import decode
from tests.curate.frames.clocks.test_coded_times import without_pictures
from tests.foreign_tars import picture, video
from tests.media import numbered_frame, write_video


def noise(kind: str, **options: object) -> bytes:
    """A picture whose data fill most of the file."""
    pixels = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def moving_gif() -> bytes:
    buffer = io.BytesIO()
    first, *others = (Image.fromarray(numbered_frame(number, 96, 64)) for number in range(6))
    first.save(buffer, "gif", save_all=True, append_images=others, duration=100)
    return buffer.getvalue()


PICTURES = {
    "jpeg": lambda: noise("jpeg", quality=95),
    "progressive": lambda: noise("jpeg", quality=95, progressive=True),
    "restarts": lambda: noise("jpeg", quality=95, restart_marker_rows=1),
    "gif": lambda: noise("gif"),
    "moving gif": moving_gif,
    "png": lambda: noise("png"),
    "webp": lambda: noise("webp"),
}


@pytest.mark.parametrize("share", [0.3, 0.7, 0.97])
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_is_cut_off_fails_as_it_does_in_pillow(name: str, share: float) -> None:
    data = PICTURES[name]()
    assert probe(data).height == 64
    cut = data[: int(len(data) * share)]
    with pytest.raises((OSError, SyntaxError, ValueError)), Image.open(io.BytesIO(cut)) as image:
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            image.load()
    with pytest.raises(SourceError):
        probe(cut)
    with pytest.raises(RunError):
        decode(cut, np.zeros(1, np.int64), np.zeros((3, 1, 64, 96), np.uint8), upright=False)


def test_a_jpeg_without_its_end_is_cut_off_and_one_with_bytes_behind_it_is_not() -> None:
    data = picture(1)
    with pytest.raises(SourceError, match="is cut off: its JPEG has no end"):
        probe(data[:-1])
    assert probe(data + bytes(7)) == probe(data)


def test_a_gif_without_its_last_byte_shows_all_pictures() -> None:
    data = moving_gif()
    assert data[-1:] == b";"
    assert probe(data[:-1]) == probe(data)


@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        ("mov", "mjpeg", {"movflags": "faststart"}),
        ("mov", "prores_ks", {"movflags": "faststart"}),
        ("avi", "mjpeg", {}),
        ("mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    ],
    ids=["mjpeg in mov", "prores in mov", "mjpeg in avi", "fragments"],
)
def test_a_film_whose_last_picture_is_not_whole_is_cut_off(
    suffix: str, codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    path = remuxed(tmp_path, suffix, codec, options)
    data = path.read_bytes()
    assert probe(data).frames == 20
    with av.open(io.BytesIO(data)) as container:
        last = max((packet.pos or 0) + packet.size // 2 for packet in container.demux(video=0) if packet.size)
    with pytest.raises(SourceError, match="is cut off"):
        probe(data[:last])


def test_fragments_that_end_early_are_cut_off(tmp_path: Path) -> None:
    options = {"movflags": "frag_every_frame+empty_moov"}
    data = remuxed(tmp_path, "mp4", "libx264", options).read_bytes()
    fragment = data.rindex(b"moof")
    for end in (fragment + 6, data.rindex(b"mdat") + 6):
        with pytest.raises(SourceError, match="is cut off: its last fragment is not whole"):
            probe(data[:end])
    assert probe(data[: data.rindex(b"mfra") + 6]) == probe(data), (
        "only the index behind the fragments is cut"
    )


def remuxed(folder: Path, suffix: str, codec: str, options: dict[str, str]) -> Path:
    pixels = {"mjpeg": "yuvj420p", "prores_ks": "yuv422p10le"}.get(codec, "yuv420p")
    path = write_video(folder / "film.mkv", (20,), size=(96, 64), codec=codec, pix_fmt=pixels)
    other = folder / f"film.{suffix}"
    with av.open(str(path)) as source, av.open(str(other), "w", options=options) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return other


@pytest.mark.parametrize("suffix", ["mkv", "webm"])
def test_matroska_that_ends_within_a_cluster_is_cut_off(suffix: str, tmp_path: Path) -> None:
    data = video(tmp_path, 1, 30, suffix)
    assert probe(data).frames == 30
    for share in (0.5, 0.9):
        with pytest.raises(SourceError, match="is cut off: its Matroska"):
            probe(data[: int(len(data) * share)])
    cues = data.rindex(b"\x1c\x53\xbb\x6b")
    assert probe(data[: cues + 6]) == probe(data), "all pictures are there, the index behind them is not"


def test_what_is_hidden_or_held_is_not_cut_off(tmp_path: Path) -> None:
    """FFmpeg gives no packet for pictures that an edit list hides, nor for empty slots at the end of AVI."""
    hidden, hold = 15, 7
    path = tmp_path / "hidden.mov"
    whole = write_video(tmp_path / "whole.mov", (60,), codec="mjpeg", pix_fmt="yuvj420p")
    with av.open(whole) as source, av.open(path, "w") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.size:
                packet.stream = copy
                packet.pts = packet.dts = packet.pts - int(hidden / 25 / packet.time_base)
                target.mux(packet)
    assert (media := probe(path.read_bytes())).frames == 60 - hidden
    assert media.duration_s == pytest.approx((60 - hidden) / 25)
    with pytest.raises(SourceError, match="cut off"):
        probe(path.read_bytes()[:-2000])
    path = write_video(tmp_path / "held.avi", (60,), codec="mjpeg", pix_fmt="yuvj420p")
    held = probe(without_pictures(path.read_bytes(), 60 - hold, 60))
    assert held.frames == 60 - hold


def test_mpeg_ps_is_called_by_its_name(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mpg", (50,), codec="mpeg2video")
    with pytest.raises(SourceError, match=r"is MPEG-PS, .*`ffmpeg -fflags .genpts -i FILE -c copy FILE.mkv`"):
        probe(path.read_bytes())
