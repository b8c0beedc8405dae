"""Both decoders give exactly the frames asked for, at the bucket's shape, with the clip's colours."""

import io
import subprocess
import sys
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
from reelweave.loader.errors import RunError
from reelweave.loader.read.decode import Decoder, decode, decode_with_decord, decode_with_pyav
from tests.media import read_number, write_video
from tests.reordering import FRAMES, understated_film

needs_decord = pytest.mark.skipif(find_spec("decord") is None, reason="decord is not installed")
each_decoder = pytest.mark.parametrize(
    "decoder", [pytest.param(decode_with_decord, marks=needs_decord), decode_with_pyav]
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """40 numbered frames of 160x128."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    return write_video(path, (20, 20)).read_bytes()


def frames_of(
    clip: bytes, bucket: Bucket, numbers: np.ndarray, decoder: Decoder = decode, **options: object
) -> np.ndarray:
    """Frames [T, H, W, 3]."""
    video_CTHW = np.full((3, bucket.frames, bucket.height, bucket.width), 77, np.uint8)
    decoder(clip, numbers, video_CTHW, **options)
    return video_CTHW.transpose(1, 2, 3, 0)


def encode(path: Path, picture_HWC: np.ndarray, matrix: str, pix_fmt: str = "yuv444p") -> bytes:
    """Four frames of one picture, converted with and labelled as a colour matrix."""
    height, width = picture_HWC.shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        stream.options = {"crf": "1", "x264-params": f"colormatrix={matrix}"}
        for number in range(4):
            frame = av.VideoFrame.from_ndarray(picture_HWC, "rgb24").reformat(
                format=pix_fmt, dst_colorspace={"bt709": "ITU709", "smpte170m": "ITU601"}[matrix]
            )
            frame.pts, frame.time_base = number, Fraction(1, 24)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path.read_bytes()


def encode_sound(path: Path) -> bytes:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        silence.sample_rate, silence.pts, silence.time_base = 44100, 0, Fraction(1, 44100)
        container.mux(stream.encode(silence))
        container.mux(stream.encode(None))
    return path.read_bytes()


@each_decoder
@pytest.mark.parametrize(
    "options",
    [
        {"g": "15", "bf": "3"},
        {"g": "250", "bf": "3"},
        {"g": "1"},
        {"g": "12", "bf": "8", "x264-params": "open-gop=1:b-adapt=0"},
    ],
    ids=["closed groups", "one keyframe", "keyframes only", "open groups"],
)
def test_the_frames_asked_for_are_given(decoder: Decoder, tmp_path: Path, options: dict[str, str]) -> None:
    clip = write_video(tmp_path / "clip.mp4", (20, 20), options=options).read_bytes()
    for start in range(32):
        frames_THWC = frames_of(clip, Bucket(9, 64, 80), np.arange(start, start + 9), decoder)
        assert [read_number(picture) for picture in frames_THWC] == list(range(start, start + 9))


@each_decoder
@pytest.mark.parametrize("numbers", [[0, 3, 6, 9], [7, 17, 27, 37], [4, 4, 5, 5], [39, 39, 39, 39]])
@pytest.mark.parametrize("keyframes", ["7", "250"])
def test_frames_may_be_skipped_and_repeated(
    decoder: Decoder, tmp_path: Path, numbers: list[int], keyframes: str
) -> None:
    clip = write_video(tmp_path / "clip.mp4", (20, 20), options={"g": keyframes, "bf": "2"}).read_bytes()
    frames_THWC = frames_of(clip, Bucket(4, 64, 80), np.array(numbers), decoder)
    assert [read_number(picture) for picture in frames_THWC] == numbers


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "gif"])
def test_an_image_is_a_video_of_one_frame(tmp_path: Path, name: str) -> None:
    picture = np.zeros((90, 160, 3), np.uint8)
    picture[:, 80:] = (250, 120, 10)
    path = tmp_path / f"image.{name}"
    Image.fromarray(picture).save(path, **({"lossless": True} if name == "webp" else {}))
    [frame] = frames_of(path.read_bytes(), Bucket(1, 45, 80), np.array([0]))
    assert np.abs(frame[20, [10, 70]].astype(int) - picture[40, [20, 140]]).max() < 12
    with pytest.raises(RunError, match="has 1 frames; frame 1"):
        frames_of(path.read_bytes(), Bucket(2, 45, 80), np.array([0, 1]))


def encode_turned(path: Path, picture_HWC: np.ndarray, degrees: int, aspect: Fraction) -> bytes:
    """Two frames, stored as they are and shown turned counter-clockwise and stretched."""
    height, width = picture_HWC.shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv444p"
        stream.codec_context.sample_aspect_ratio = aspect
        stream.set_display_rotation(degrees)
        for number in range(2):
            frame = av.VideoFrame.from_ndarray(picture_HWC, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 24)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path.read_bytes()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("aspect", [Fraction(1), Fraction(2)])
def test_a_foreign_video_is_shown_as_viewers_show_it(tmp_path: Path, degrees: int, aspect: Fraction) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:32, :48] = 255  # the stored top left
    clip = encode_turned(tmp_path / "turned.mp4", picture, degrees, aspect)
    shown = np.rot90(picture.repeat(int(aspect), axis=1), degrees // 90)
    [first] = frames_of(clip, Bucket(1, *shown.shape[:2]), np.array([0]), upright=False)
    assert np.abs(first.astype(int) - shown).mean() < 12


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_shown_as_its_exif_says(kind: str, orientation: int) -> None:
    """Also mirrored, as cameras at the front write it."""
    stored = np.zeros((64, 96, 3), np.uint8)
    stored[:32, :48], stored[32:, 48:] = 255, 120
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(file, kind, exif=exif)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    [picture] = frames_of(file.getvalue(), Bucket(1, *shown.shape[:2]), np.array([0]), upright=False)
    assert np.abs(picture.astype(int) - shown).mean() < 12


def test_a_playlist_is_not_followed(clip: bytes, tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(clip)
    playlist = f"ffconcat version 1.0\nfile '{tmp_path}/secret.mp4'\n".encode()
    with pytest.raises(RunError, match="cannot be decoded"):
        frames_of(playlist, Bucket(1, 64, 80), np.array([0]), upright=False)


@each_decoder
@pytest.mark.parametrize(
    "size", [(128, 160), (64, 80), (63, 79), (48, 96), (96, 48), (37, 111), (160, 200), (16, 16)]
)
def test_any_size_is_covered_exactly(decoder: Decoder, clip: bytes, size: tuple[int, int]) -> None:
    frames_THWC = frames_of(clip, Bucket(2, *size), np.array([3, 4]), decoder)
    assert [int(np.abs(picture.astype(int) - 77).max()) > 0 for picture in frames_THWC] == [True, True]


@each_decoder
def test_the_crop_keeps_the_centre_and_the_shapes(decoder: Decoder, tmp_path: Path) -> None:
    picture = np.full((90, 160, 3), 128, np.uint8)
    picture[:, 75:85] = 255  # a bright bar in the middle column, 10 of 160 wide
    bar = encode(tmp_path / "bar.mp4", picture, "bt709")
    [first] = frames_of(bar, Bucket(1, 180, 180), np.array([0]), decoder)
    bright = np.flatnonzero(first[90, :, 1] > 200)
    assert abs(bright.mean() - 89.5) < 1
    assert abs(len(bright) - 20) <= 2  # enlarged twice in both directions, not squeezed


@each_decoder
@pytest.mark.parametrize("matrix", ["bt709", "smpte170m"])
def test_colours_follow_the_matrix_the_clip_names(decoder: Decoder, tmp_path: Path, matrix: str) -> None:
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (200, 150, 100)], np.uint8)
    picture = np.broadcast_to(colours.repeat(80, axis=0), (160, 320, 3)).copy()
    clip = encode(tmp_path / "colours.mp4", picture, matrix)
    frames = frames_of(clip, Bucket(1, 80, 160), np.array([2]), decoder)
    seen = frames[0, 40, 20::40].astype(int)
    assert np.abs(seen - colours).max() <= 5


@pytest.mark.parametrize("size", [(80, 160), (90, 170), (101, 201)])
def test_resizing_darkens_nothing(tmp_path: Path, size: tuple[int, int]) -> None:
    ramp_W = np.linspace(20, 235, 320)
    picture = np.broadcast_to(np.stack([ramp_W, ramp_W[::-1], ramp_W], -1), (160, 320, 3)).astype(np.uint8)
    clip = encode(tmp_path / "ramp.mp4", picture, "bt709", "yuv420p")
    [first] = frames_of(clip, Bucket(1, *size), np.array([0]), decode_with_pyav)
    assert np.abs(first.mean(axis=(0, 1)) - picture.mean(axis=(0, 1))).max() < 0.6


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "yuv444p"])
def test_every_column_is_drawn_where_nothing_is_resized(tmp_path: Path, pix_fmt: str) -> None:
    """swscale's own path from YUV to planes leaves up to 8 columns behind a multiple of 16 as memory was."""
    colours = np.broadcast_to(np.array((200, 150, 100), np.uint8), (32, 80, 3)).copy()
    colours[:, :48] = (60, 200, 120)
    for width in range(64, 82, 2):
        clip = encode(tmp_path / "colours.mp4", colours[:, :width], "bt709", pix_fmt)
        frames = frames_of(clip, Bucket(2, 32, width), np.array([0, 3]), decode_with_pyav)
        differences = np.abs(frames.astype(int) - colours[:, :width])
        differences[:, :, 46:50] = 0  # chroma of two pixels is one
        assert differences.max() <= 5, width


@needs_decord
@pytest.mark.parametrize("bucket", [Bucket(9, 64, 80), Bucket(9, 48, 96), Bucket(5, 160, 200)])
def test_the_decoders_agree(clip: bytes, bucket: Bucket) -> None:
    numbers = np.arange(12, 12 + bucket.frames)
    one, other = (
        frames_of(clip, bucket, numbers, decoder).astype(int)
        for decoder in (decode_with_decord, decode_with_pyav)
    )
    assert np.abs(one - other).mean() < 2.5
    assert np.abs(one - other).max() <= 20


@each_decoder
def test_a_clip_that_is_too_short_says_how_short(decoder: Decoder, clip: bytes) -> None:
    assert len(frames_of(clip, Bucket(9, 64, 80), np.arange(31, 40), decoder)) == 9
    with pytest.raises(RunError, match="has 40 frames; frame 40, counted from 0, was asked for"):
        frames_of(clip, Bucket(9, 64, 80), np.arange(32, 41), decoder)


@each_decoder
@pytest.mark.parametrize("damage", ["empty", "text", "cut off", "sound only"])
def test_what_is_no_clip_is_refused_in_words(
    decoder: Decoder, clip: bytes, tmp_path: Path, damage: str
) -> None:
    broken = {
        "empty": b"",
        "text": b"not a video\n" * 400,
        "cut off": clip[: len(clip) // 3],
        "sound only": encode_sound(tmp_path / "sound.mp4"),
    }[damage]
    with pytest.raises(RunError, match="cannot be decoded"):
        frames_of(broken, Bucket(9, 64, 80), np.arange(9), decoder)


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "mpeg4.avi", "mpeg2.ts"])
def test_concealed_damage_is_refused_up_to_the_next_key_frame(name: str, tmp_path: Path) -> None:
    """FFmpeg fills what it cannot decode from other frames, without an error."""
    kind = name.partition(".")[0]
    codec = {"h264": "libx264", "mpeg2": "mpeg2video"}.get(kind, kind)
    path = write_video(tmp_path / name, (40,), codec=codec, options={"g": "10", "bf": "0"})
    data, bucket = bytearray(path.read_bytes()), Bucket(5, 128, 160)
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][13]
    middle = packet.pos + packet.size // 2
    whole = bytes(data)
    data[middle : middle + 20] = b"\x5a" * 20
    for first in (0, 8, 20, 35):  # frames before the damage, and behind the next key frame
        numbers = np.arange(first, first + 5)
        assert np.array_equal(frames_of(bytes(data), bucket, numbers), frames_of(whole, bucket, numbers))
    for first in (10, 13, 15):
        with pytest.raises(RunError, match="the clip is damaged at frame 13, counted from 0; frame 1"):
            frames_of(bytes(data), bucket, np.arange(first, first + 5))


@pytest.mark.parametrize("damage", ["flipped bit", "garbled"])
def test_damage_of_vp9_is_refused_up_to_the_next_key_frame(damage: str, tmp_path: Path) -> None:
    """FFmpeg's own decoder tells none of it; libvpx does mostly."""
    path = write_video(tmp_path / "a.webm", (40,), codec="libvpx-vp9", options={"g": "10", "cpu-used": "8"})
    data, bucket = bytearray(path.read_bytes()), Bucket(5, 128, 160)
    whole = bytes(data)
    position, size = packet_of(path, 13)
    middle = position + size // 2
    if damage == "flipped bit":
        data[middle] ^= 4
    else:
        data[middle : middle + 20] = b"\x5a" * 20
    for first in (0, 8, 20, 35):
        numbers = np.arange(first, first + 5)
        assert np.array_equal(frames_of(bytes(data), bucket, numbers), frames_of(whole, bucket, numbers))
    for first in (10, 13, 15):
        with pytest.raises(RunError, match="cannot be decoded"):
            frames_of(bytes(data), bucket, np.arange(first, first + 5))


def test_frames_of_hevc_that_are_missing_or_have_wrong_headers_are_refused(tmp_path: Path) -> None:
    """FFmpeg leaves out what it cannot decode at all, and frames behind it took its number."""
    options = {"x265-params": "log-level=none:keyint=10:bframes=0"}
    path = write_video(tmp_path / "a.mp4", (40,), codec="libx265", options=options)
    data, bucket = bytearray(path.read_bytes()), Bucket(5, 128, 160)
    whole = bytes(data)
    position, size = packet_of(path, 13)
    data[position : position + size] = bytes(size)
    for first in (0, 8, 20, 35):
        numbers = np.arange(first, first + 5)
        assert np.array_equal(frames_of(bytes(data), bucket, numbers), frames_of(whole, bucket, numbers))
    for first in (10, 13, 15):
        with pytest.raises(RunError, match=r"damaged at frame 13|cannot be decoded"):
            frames_of(bytes(data), bucket, np.arange(first, first + 5))


@pytest.mark.parametrize(
    "options", [(), ("-metadata:s:v", "rotate=90"), ("-c:v", "libvpx-vp9", "-pix_fmt", "yuv420p10")]
)
def test_vp9_has_the_pictures_that_ffmpeg_shows(tmp_path: Path, options: tuple[str, ...]) -> None:
    path = tmp_path / "a.mp4"
    write_video(tmp_path / "b.mp4", (12,), codec="libvpx-vp9", options={"cpu-used": "8"})
    command = ["ffmpeg", "-v", "error", "-i", str(tmp_path / "b.mp4"), "-c", "copy", *options, str(path)]
    subprocess.run(command, check=True)
    with open_clip(path.read_bytes()) as (container, stream):
        wanted = list(container.decode(stream))
    with open_clip(path.read_bytes()) as (container, stream):
        shown = list(decode_stream(container, stream))
    assert len(shown) == 12
    assert all((frame.rotation != 0) == ("rotate=90" in options) for frame in shown)
    assert [(frame.pts, frame.rotation) for frame in shown] == [
        (frame.pts, frame.rotation) for frame in wanted
    ]
    for frame, same in zip(shown, wanted, strict=True):
        assert np.array_equal(frame.to_ndarray(), same.to_ndarray())
        assert (frame.color_trc, frame.colorspace, frame.color_range) == (
            same.color_trc,
            same.colorspace,
            same.color_range,
        )


def packet_of(path: Path, index: int) -> tuple[int, int]:
    """Position and bytes of a packet."""
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][index]
    return packet.pos, packet.size


def test_decord_decodes_where_it_is_asked_for_and_installed(clip: bytes) -> None:
    program = """
import sys
if sys.argv[1] == "hidden":
    sys.modules["decord"] = None  # what Python itself notes for a module that cannot be imported
import numpy as np
from reelweave.loader.read.decode import decode
video_CTHW = np.empty((3, 3, 48, 96), np.uint8)
decode(sys.stdin.buffer.read(), np.arange(5, 8), video_CTHW, decoder=sys.argv[2])
print("decord.video_reader" in sys.modules, file=sys.stderr)
sys.stdout.buffer.write(video_CTHW.transpose(1, 2, 3, 0).tobytes())
"""
    is_installed = find_spec("decord") is not None
    for state, decoder in [("hidden", "decord"), ("shown", "decord"), ("shown", "pyav")]:
        run = subprocess.run(
            [sys.executable, "-c", program, state, decoder], input=clip, capture_output=True, check=True
        )
        by_decord = state == "shown" and decoder == "decord" and is_installed
        assert run.stderr.decode().strip() == str(by_decord)
        wanted = frames_of(
            clip, Bucket(3, 48, 96), np.arange(5, 8), decode_with_decord if by_decord else decode_with_pyav
        )
        assert run.stdout == wanted.tobytes()


@needs_decord
@pytest.mark.parametrize(("codec", "name"), [("libx264", "fragments.mp4"), ("libx265", "whole.mp4")])
def test_decord_leaves_films_that_understate_their_order_to_pyav(
    codec: str, name: str, tmp_path: Path
) -> None:
    """Of 75 frames, decord gave 73 and 74 wrong ones, without an error."""
    film = understated_film(tmp_path, name, codec).read_bytes()
    video_CTHW = np.zeros((3, FRAMES, 128, 192), np.uint8)
    decode(film, np.arange(FRAMES), video_CTHW, decoder="decord")
    assert [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)] == list(range(FRAMES))
