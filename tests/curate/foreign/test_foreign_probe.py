"""What is said of media is what a decoder shows."""

import io
from fractions import Fraction
from pathlib import Path

import av
import pytest
from PIL import Image

from reelweave.curate.foreign import tar
from reelweave.curate.foreign.fields import FieldChoice
from reelweave.curate.foreign.probe import Media, probe
from reelweave.curate.foreign.size_headers import SizeHeaders
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.publishing.tar_index import TarIndex
from reelweave.loader.storage import open_storage
from tests.foreign_tars import by_tarfile, picture, video
from tests.media import numbered_frame, write_video
from tests.player import ffmpeg
from tests.thorough import but

REALTIME = {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0", "g": "999"}


def remuxed(path: Path, **options: int) -> bytes:
    other = path.with_stem(path.stem + "-again").with_suffix(".avi" if "ticks" in options else path.suffix)
    with av.open(str(path)) as source, av.open(str(other), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        if "ticks" in options:
            stream.time_base = Fraction(1, options["ticks"])
        if "rotation" in options:
            stream.set_display_rotation(options["rotation"])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return other.read_bytes()


@pytest.mark.parametrize("suffix", ["mp4", "mov", "m4v", "mkv", "webm", "avi"])
def test_frames_of_every_container_are_counted(tmp_path: Path, suffix: str) -> None:
    found = probe(video(tmp_path, 1, 31, suffix))
    assert (found.frames, found.height, found.width, found.audio) == (31, 64, 96, "none")
    assert found.fps == pytest.approx(25, rel=0.02)
    assert found.duration_s == pytest.approx(31 / 25, rel=0.02)


@pytest.mark.parametrize("b_frames", ["0", "2"])
def test_an_avi_with_empty_packets_between_its_frames_is_whole(tmp_path: Path, b_frames: str) -> None:
    path = write_video(tmp_path / "a.ts", (40,), size=(96, 64), options={"bf": b_frames})
    copied = remuxed(path, ticks=50)
    found = probe(copied)
    assert (found.frames, found.fps, found.duration_s) == (40, 25, 1.6)
    with pytest.raises(SourceError, match="is cut off"):
        probe(copied[: len(copied) * 2 // 3])


def test_frames_that_are_never_shown_do_not_count(tmp_path: Path) -> None:
    path = write_video(tmp_path / "vp8.webm", (20,), size=(96, 64), codec="libvpx")
    other = tmp_path / "hidden.webm"
    with av.open(str(path)) as source, av.open(str(other), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(source.streams.video[0])):
            content = bytearray(bytes(packet))
            if not content:
                continue
            if number == 7:  # as alternate reference frames are marked: RFC 6386, 9.1
                content[0] &= ~0x10
            made = av.Packet(bytes(content))
            made.pts, made.dts, made.time_base = packet.pts, packet.dts, packet.time_base
            made.is_keyframe, made.stream = packet.is_keyframe, stream
            target.mux(made)
    with av.open(str(other)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 19
    assert probe(other.read_bytes()).frames == 19


def test_time_stamps_go_before_a_stated_rate(tmp_path: Path) -> None:
    times_s = [number / 10 for number in range(20)]
    path = write_video(tmp_path / "slow.mp4", (20,), size=(96, 64), times_s=times_s)
    assert probe(path.read_bytes()).duration_s == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(("rotation", "shape"), [(90, (96, 64)), (180, (64, 96)), (-90, (96, 64))])
def test_size_is_that_of_the_upright_picture(tmp_path: Path, rotation: int, shape: tuple[int, int]) -> None:
    path = write_video(tmp_path / "a.mp4", (5,), size=(96, 64))
    found = probe(remuxed(path, rotation=rotation))
    assert (found.height, found.width) == shape


def test_size_has_square_pixels(tmp_path: Path) -> None:
    path = tmp_path / "wide.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(numbered_frame(number, 96, 64), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    found = probe(path.read_bytes())
    assert (found.height, found.width) == (64, 128)


def test_sound_is_named(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (25,), size=(96, 64), audio=True)
    assert probe(path.read_bytes()).audio == "aac"


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_a_picture_is_one_frame(kind: str) -> None:
    found = probe(picture(3, kind))
    assert (found.frames, found.height, found.width, found.fps) == (1, 64, 96, 25.0)
    assert found.duration_s == 0.04


def test_a_picture_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = probe(picture(3, "jpeg", exif=exif))
    assert (found.height, found.width) == (96, 64)


def test_a_moving_gif_is_a_video() -> None:
    buffer = io.BytesIO()
    first, *others = (Image.fromarray(numbered_frame(number, 96, 64)) for number in range(6))
    first.save(buffer, "gif", save_all=True, append_images=others, duration=100)
    found = probe(buffer.getvalue())
    assert (found.frames, found.fps) == (6, 10.0)


def test_media_that_are_cut_off_fail(tmp_path: Path) -> None:
    data = remuxed(write_video(tmp_path / "a.mp4", (50,), size=(96, 64)))
    with av.open(io.BytesIO(data)) as container:
        last = [packet.pos for packet in container.demux(video=0) if packet.size][40]
    fast_start = tmp_path / "fast.mp4"
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(str(fast_start), "w", options={"movflags": "faststart"}) as to,
    ):
        stream = to.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                to.mux(packet)
    whole = fast_start.read_bytes()
    assert probe(whole).frames == 50
    with pytest.raises(SourceError, match="promises 50 frames"):
        probe(whole[:last])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk" * 500,
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    ],
    ids=["empty", "junk", "playlist", "concat"],
)
def test_what_is_no_media_fails_in_words(data: bytes) -> None:
    with pytest.raises(SourceError):
        probe(data)


def test_a_video_whose_first_frame_is_damaged_fails(tmp_path: Path) -> None:
    data = bytearray(video(tmp_path, 1, 20))
    with av.open(io.BytesIO(bytes(data))) as container:
        first = next(packet for packet in container.demux(video=0) if packet.size)
    data[first.pos : first.pos + first.size] = b"\xff" * first.size
    with pytest.raises(SourceError):
        probe(bytes(data))


ENCODERS = {
    "h264.ts": "-c:v libx264 -bf 2",
    "h264.mp4": "-c:v libx264 -bf 2",
    "hevc.mkv": "-c:v libx265 -preset ultrafast -x265-params log-level=0",
    "vp8.webm": "-c:v libvpx -deadline realtime -cpu-used 8",
    "vp9.webm": "-c:v libvpx-vp9 -deadline realtime",
    "av1.mkv": "-c:v libaom-av1 -cpu-used 8 -usage realtime",
    "mpeg2.ts": "-c:v mpeg2video",
}


def in_two_sizes(folder: Path, name: str, sizes: tuple[str, str], g: int = 12) -> bytes:
    """Two parts of 20 frames, joined without encoding them again."""
    suffix = Path(name).suffix.removeprefix(".")
    middle = "ts" if "26" in ENCODERS[name] or suffix == "ts" else suffix
    for number, size in enumerate(sizes):
        words = f"-f lavfi -i testsrc2=s={size}:r=25:d=0.8 {ENCODERS[name]} -g {g} -pix_fmt yuv420p"
        ffmpeg([*words.split(), "-y", str(folder / f"{number}.{middle}")])
    (folder / "list").write_text(f"file 0.{middle}\nfile 1.{middle}\n")
    ffmpeg(f"-f concat -i {folder / 'list'} -c copy -y {folder / name}".split())
    return (folder / name).read_bytes()


@pytest.mark.parametrize("name", but(("h264.mp4", "vp8.webm", "mpeg2.ts"), ENCODERS))
def test_a_film_that_changes_its_size_is_left_out_in_words(name: str, tmp_path: Path) -> None:
    data = in_two_sizes(tmp_path, name, ("128x96", "96x128"))
    with pytest.raises(SourceError, match=r"changes its picture from 128x96 to 96x128 at frame (19|20)"):
        probe(data)
    same = probe(in_two_sizes(tmp_path, name, ("128x96", "128x96")))
    assert (same.frames, same.height, same.width) == (40, 96, 128)


INTRA = {
    "mjpeg.mov": "-c:v mjpeg -pix_fmt yuvj420p",
    "prores.mov": "-c:v prores_ks",
    "mjpeg.mkv": "-c:v mjpeg",
}


@pytest.mark.parametrize("name", but(("mjpeg.mkv", "prores.mov"), INTRA))
def test_a_size_that_changes_between_whole_pictures_is_seen(name: str, tmp_path: Path) -> None:
    sizes = (tmp_path / "0.mkv", "128x96"), (tmp_path / "1.mkv", "96x128")
    for path, size in sizes:
        ffmpeg(f"-f lavfi -i testsrc2=s={size}:r=25:d=0.8 {INTRA[name]} -y {path}".split())
    (tmp_path / "list").write_text("file 0.mkv\nfile 1.mkv\n")
    ffmpeg(f"-f concat -i {tmp_path / 'list'} -c copy -y {tmp_path / name}".split())
    with pytest.raises(SourceError, match=r"changes its picture from 128x96 to 96x128 at frame 20"):
        probe((tmp_path / name).read_bytes())
    ffmpeg(f"-i {tmp_path / '0.mkv'} -c copy -y {tmp_path / name}".split())
    assert (probe((tmp_path / name).read_bytes()).frames, probe(sizes[0][0].read_bytes()).width) == (20, 128)


@pytest.mark.parametrize("name", ["a.mp4", "a.webm"])
def test_av1_that_scales_between_key_frames_is_seen(name: str, tmp_path: Path) -> None:
    words = "resize-mode=2:pred-struct=1:rc=0:keyint=999"
    options = {"preset": "12", "svtav1-params": words}
    path = write_video(tmp_path / name, (24,), size=(320, 192), codec="libsvtav1", options=options)
    with pytest.raises(SourceError, match="changes its picture from "):
        probe(path.read_bytes())
    options["svtav1-params"] = words.replace("resize-mode=2:", "")
    path = write_video(tmp_path / name, (24,), size=(320, 192), codec="libsvtav1", options=options)
    with av.open(str(path)) as container:
        heads = SizeHeaders(container.streams.video[0].codec_context)
        for packet in container.demux(video=0):
            heads.add(packet)
    assert not heads.change


def test_vp9_that_scales_between_key_frames_is_looked_at_whole(tmp_path: Path) -> None:
    """No encoder here writes such frames: the header of one is written anew, and what follows it fits no more."""
    path = write_video(tmp_path / "a.webm", (24,), size=(320, 192), codec="libvpx-vp9", options=REALTIME)
    other = tmp_path / "other.webm"
    with av.open(str(path)) as source, av.open(str(other), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        whole = SizeHeaders(source.streams.video[0].codec_context)
        for number, packet in enumerate(source.demux(video=0)):
            whole.add(packet)
            if not packet.size:
                continue
            content = bytes(packet)
            if number == 12:
                bits = f"{int.from_bytes(content, 'big'):0{8 * len(content)}b}"
                at = 2 + 2 + 1 + 3 + (0 if bits[7] == "1" else 2) + 8 + 12
                assert bits[at] == "1"  # as large as its first reference
                bits = bits[:at] + "000" + f"{159:016b}{95:016b}" + bits[at + 1 :]
                content = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
            changed = av.Packet(content)
            changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
            changed.is_keyframe, changed.stream = packet.is_keyframe, stream
            target.mux(changed)
    assert not whole.change
    assert probe(path.read_bytes()).frames == 24
    with pytest.raises(SourceError, match=r"changes its picture|cannot be decoded"):
        probe(other.read_bytes())


@pytest.mark.parametrize(("suffix", "codecs", "name"), [("flv", "flv1", "flv"), ("ogv", "libtheora", "ogg")])
def test_containers_that_curate_alone_reads_are_called_by_their_names(
    suffix: str, codecs: str, name: str, tmp_path: Path
) -> None:
    """They were "no video container, or encrypted as a whole"."""
    path = tmp_path / f"a.{suffix}"
    ffmpeg(f"-f lavfi -i testsrc2=s=64x64:d=1 -c:v {codecs} -y {path}".split())
    with pytest.raises(SourceError, match=rf"^is {name}, .*-c copy") as refused:
        probe(path.read_bytes())
    assert "encrypted" not in str(refused.value)


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 64, b"\0\0\1\xba" + b"\x44" * 4000, b"FLV" + b"\xff" * 4000]
)
def test_damaged_bytes_are_not_called_another_container(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^cannot be opened"):
        probe(data)


def test_what_nobody_foresaw_of_a_sample_ends_no_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [(f"{number}", {"mp4": video(tmp_path, number)}) for number in range(2)]
    path = by_tarfile(tmp_path / "set" / "a.tar", contents)

    def odd(data: bytes) -> Media:
        if data == contents[0][1]["mp4"]:
            raise KeyError("odd")
        return probe(data)

    monkeypatch.setattr(tar, "probe", odd)
    folder = open_storage(path.parent)
    for _ in tar.read_tar(tar.TarTask(folder, "a.tar", folder, {}, tmp_path / "at", FieldChoice())):
        pass
    found = TarIndex.from_bytes(folder.read(tar.note_path("a.tar")))
    assert found is not None
    odd_one, other = found.table.column("reason").to_pylist()
    assert odd_one.startswith("cannot be worked on: KeyError")
    assert not other


def test_pictures_whose_pid_becomes_that_of_sound_are_refused(tmp_path: Path) -> None:
    """PyAV keeps the decoder of pictures for what is sound now."""
    source, pieces = write_video(tmp_path / "whole.mp4", (50,), audio=True), []
    for number, words in enumerate(("", "-streamid 0:257 -streamid 1:256")):
        piece = tmp_path / f"{number}.ts"
        ffmpeg(
            [
                "-i",
                str(source),
                "-c",
                "copy",
                *words.split(),
                "-output_ts_offset",
                str(2 * number),
                str(piece),
            ]
        )
        pieces.append(piece.read_bytes())
    with pytest.raises(SourceError, match="cannot be decoded"):
        probe(b"".join(pieces))
