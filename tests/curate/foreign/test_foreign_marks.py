"""What a sample is that trains otherwise than it looks is marked in the index, counted and said."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.container.encryption import boxes
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.samples.frames.shown_frames import count_shown
from reelweave.loader.read.decode import decode
from tests.curate.foreign.foreign_sets import index, problems
from tests.curate.frames.container.test_immersive import EQUIRECTANGULAR, SIDE_BY_SIDE, panorama, views
from tests.curate.frames.container.test_side_data import stated
from tests.foreign_tars import by_tarfile, picture, video
from tests.media import numbered_frame
from tests.player import ffmpeg
from tests.thorough import but

INTERLACED = {
    "h264.mp4": "-c:v libx264 -flags +ildct+ilme",
    "mpeg2.ts": "-c:v mpeg2video -flags +ildct+ilme",
    "dv.avi": "-c:v dvvideo -s 720x576",
}


def combed(path: Path, words: str) -> bytes:
    source = "-f lavfi -i testsrc2=s=128x96:r=50:d=0.4 -vf tinterlace=interleave_top,setfield=tff"
    ffmpeg([*source.split(), *words.split(), "-pix_fmt", "yuv420p", "-y", str(path)])
    return path.read_bytes()


def holed(kind: str, least: int) -> bytes:
    """A picture whose upper half has this opacity."""
    opacity = np.full((64, 96, 1), 255, np.uint8)
    opacity[:32] = least
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate([numbered_frame(1, 96, 64), opacity], axis=2)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("name", but(("h264.mp4", "mpeg2.ts"), INTERLACED))
def test_interlaced_media_are_known(name: str, tmp_path: Path) -> None:
    assert probe(combed(tmp_path / name, INTERLACED[name])).interlaced
    assert not probe(video(tmp_path, 1)).interlaced


@pytest.mark.parametrize("kind", ["png", "gif", "webp"])
def test_transparent_pixels_are_known_and_an_alpha_without_them_is_none(kind: str) -> None:
    assert probe(holed(kind, 0)).transparent
    assert not probe(holed(kind, 255)).transparent


@pytest.mark.parametrize("codec", ["libvpx-vp9", "libvpx"])
def test_alpha_beside_the_pictures_of_webm_is_known(codec: str, tmp_path: Path) -> None:
    for least, is_transparent in ((0, True), (255, False)):
        path = tmp_path / f"{least}.webm"
        source = f"-f lavfi -i testsrc2=s=128x96:r=25:d=0.4,format=yuva420p,lutyuv=a={least}"
        ffmpeg(f"{source} -c:v {codec} -auto-alt-ref 0 -pix_fmt yuva420p -y {path}".split())
        found = probe(path.read_bytes())
        assert (found.frames, found.transparent) == (10, is_transparent)


@pytest.mark.parametrize("mode", ["P", "LA", "1", "I;16"])
def test_palettes_and_other_pictures_are_read(mode: str) -> None:
    whole = Image.fromarray(numbered_frame(1, 96, 64)).convert(mode.split(";")[0]).convert(mode)
    for hidden in (False, True) if mode == "P" else (False,):
        buffer = io.BytesIO()
        whole.save(buffer, "png", **({"transparency": whole.getpixel((0, 0))} if hidden else {}))
        assert probe(buffer.getvalue()).transparent == hidden


def test_marks_are_counted_and_say_what_to_do(tmp_path: Path) -> None:
    by_tarfile(
        tmp_path / "set/a.tar",
        [
            ("plain", {"mp4": video(tmp_path, 1), "txt": b"plain"}),
            ("combed", {"mp4": combed(tmp_path / "a.mp4", INTERLACED["h264.mp4"]), "txt": b"combed"}),
            ("holed", {"png": holed("png", 0), "txt": b"holed"}),
        ],
    )
    interlaced, transparent = index(tmp_path / "set").notes
    assert interlaced.startswith(
        "1 sample is marked as interlaced (attributes: scan=interlaced in index.parquet)"
    )
    assert "`reelweave curate`" in interlaced
    assert transparent.startswith("1 sample has transparent pixels (attributes: alpha=transparent in index")
    dataset = open_dataset(tmp_path / "set")
    marks = {row["key"]: dict(row["attributes"]) for row in map(dataset.row, dataset.row_numbers.values())}
    assert marks == {"plain": {}, "combed": {"scan": "interlaced"}, "holed": {"alpha": "transparent"}}


def test_captions_that_are_cut_off_are_counted_and_marked(tmp_path: Path) -> None:
    captions = {"long": b"word " * 900, "most": b"four " * 799 + b"words", "short": b"word"}
    by_tarfile(
        tmp_path / "a.tar", [(key, {"jpg": picture(1), "txt": text}) for key, text in captions.items()]
    )
    assert index(tmp_path).notes == (
        "1 caption has more than 4,000 characters: the rest is cut off (attributes: caption=cut in index.parquet)",
    )
    dataset = open_dataset(tmp_path)
    rows = {row["key"]: row for row in map(dataset.row, dataset.row_numbers.values())}
    assert {key: dict(row["attributes"]) for key, row in rows.items()} == {
        "long": {"caption": "cut"},
        "most": {},
        "short": {},
    }
    assert (len(rows["long"]["caption"]), len(rows["most"]["caption"])) == (3999, 4000)
    assert problems(tmp_path) == []


def test_samples_without_a_caption_are_counted_and_an_unsorted_tar_is_why(tmp_path: Path) -> None:
    keys = ("a", "b", "c")
    texts = [(key, {"txt": b"a caption"}) for key in keys]
    by_tarfile(tmp_path / "x.tar", [*((key, {"jpg": picture(1)}) for key in keys), *texts])
    by_tarfile(
        tmp_path / "y.tar", [("bare", {"jpg": picture(2)}), ("said", {"jpg": picture(3), "txt": b"it"})]
    )
    assert index(tmp_path).notes == (
        "4 samples have no .txt or .json: training goes without a caption, the first: a of x.tar; 3 of them come again"
        " in their tar, without a video: members of a sample must lie side by side, as `tar --sort=name` writes them",
    )


def several(kind: str) -> bytes:
    """A green picture and a grey one behind it, as cameras store gain maps."""
    photo, grey = Image.new("RGB", (96, 64), (0, 128, 0)), Image.radial_gradient("L")
    buffer, further = io.BytesIO(), io.BytesIO()
    if kind == "mpo":
        photo.save(buffer, "MPO", save_all=True, append_images=[grey], quality=95)
        return buffer.getvalue()
    photo.save(buffer, kind.removeprefix("cut "))
    grey.resize((96, 64)).save(further, kind.removeprefix("cut "))
    return buffer.getvalue()[: -2 if "cut" in kind else None] + further.getvalue()


@pytest.mark.parametrize("kind", ["mpo", "jpeg", "cut jpeg", "png", "webp"])
def test_of_a_file_with_several_pictures_the_first_one_counts(kind: str, tmp_path: Path) -> None:
    data = several(kind)
    found = probe(data)
    assert (found.frames, found.height, found.width, found.fps, found.duration_s) == (1, 64, 96, 25.0, 0.04)
    assert found.rest
    assert count_shown(data) == 1
    video_CTHW = np.zeros((3, 1, 64, 96), np.uint8)
    decode(data, np.zeros(1, np.int64), video_CTHW, upright=False)
    assert np.abs(video_CTHW.mean((1, 2, 3)) - [0, 128, 0]).max() < 4


def test_an_animated_webp_fails_by_that_name() -> None:
    first, *others = (Image.fromarray(numbered_frame(number, 96, 64)) for number in range(3))
    moving, still = io.BytesIO(), io.BytesIO()
    first.save(moving, "webp", save_all=True, append_images=others)
    with pytest.raises(SourceError, match="is an animated WebP, which FFmpeg does not decode"):
        probe(moving.getvalue())
    first.save(
        still, "webp", exif=Image.Exif(), icc_profile=bytes(128)
    )  # the same header without an animation
    assert still.getvalue()[12:16] == b"VP8X"
    assert probe(still.getvalue()).frames == 1


def test_what_lies_behind_a_picture_and_is_none_does_not_count() -> None:
    for behind in (bytes(64), b"SEFH" + bytes(64)):
        assert probe(picture(1) + behind) == probe(picture(1))


def test_films_that_were_joined_in_mp4_are_counted_with_their_first_part(tmp_path: Path) -> None:
    film = video(tmp_path, 1)
    by_tarfile(tmp_path / "set/a.tar", [("joined", {"mp4": film * 2, "txt": b"a film"})])
    (note,) = index(tmp_path / "set").notes
    assert note.startswith("1 sample holds more behind the first picture or film")
    assert "(attributes: rest=unread in index.parquet)" in note
    assert probe(film * 2) == replace(probe(film), rest=True)


def test_fragmented_films_that_were_joined_fail_and_repeated_init_segments_do_not(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    fragmented = "-movflags frag_keyframe+empty_moov+default_base_moof -g 5"
    ffmpeg(f"-f lavfi -i testsrc2=s=96x64:r=25:d=0.8 -c:v libx264 {fragmented} -y {path}".split())
    data = path.read_bytes()
    with pytest.raises(SourceError, match="several fragmented films"):
        probe(data * 2)
    parts = [(kind, data[at : at + size]) for kind, at, size in boxes(io.BytesIO(data))]
    init = b"".join(part for kind, part in parts if kind in (b"ftyp", b"moov"))
    media = [part for kind, part in parts if kind in (b"moof", b"mdat")]
    again = b"".join([init, *media[:4], init, *media[4:]])
    assert probe(again) == probe(data)


def test_panoramas_and_3d_are_marked_and_counted_as_in_curation(tmp_path: Path) -> None:
    films = {
        "a": panorama(b"equi") + views(2),
        "b": panorama(b"equi") + views(2),
        "c": views(0),
    }
    samples = [
        (key, {"mp4": stated(tmp_path / f"{key}.mp4", added).read_bytes(), "txt": b"A boat."})
        for key, added in films.items()
    ]
    by_tarfile(tmp_path / "tars/0.tar", samples)
    told = index(tmp_path / "tars")
    view = f"{EQUIRECTANGULAR}; {SIDE_BY_SIDE}"
    rows = open_dataset(tmp_path / "tars").index.to_pylist()
    assert [dict(row["attributes"]).get("view") for row in rows] == [view, view, None]
    assert any(f"2 samples: {view} (attributes: view" in note for note in told.notes)


def test_a_picture_with_exif_is_no_panorama() -> None:
    """PyAV refuses to list side data of kinds that it has no name for."""
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(numbered_frame(1, 96, 64)).save(buffer, "JPEG", exif=exif)
    found = probe(buffer.getvalue())
    assert (found.height, found.width, found.immersive) == (96, 64, "")


@pytest.mark.skipif("AVIF" not in Image.registered_extensions().values(), reason="of Pillow 11.3 on")
@pytest.mark.parametrize("count", [2, 6, 30])
def test_a_sequence_of_avif_is_a_film_of_its_frames(count: int) -> None:
    shades = [Image.new("RGB", (96, 64), (8 * shade, 8 * shade, 8 * shade)) for shade in range(count)]
    buffer = io.BytesIO()
    shades[0].save(buffer, "AVIF", save_all=True, append_images=shades[1:], duration=100, quality=90)
    found = probe(buffer.getvalue())
    assert (found.frames, found.fps) == (count, pytest.approx(10))
    video_CTHW = np.empty((3, count, 64, 96), np.uint8)
    decode(buffer.getvalue(), np.arange(count), video_CTHW, upright=False)
    assert np.abs(video_CTHW[0, :, 32, 48] - 8.0 * np.arange(count)).max() <= 4
    still = io.BytesIO()
    shades[0].save(still, "AVIF")
    assert probe(still.getvalue()).frames == 1
