"""Pictures that are drawn of other people's samples stand upright with square pixels, as those of streams do."""

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from reelweave.curate.models.clip_frames import shown_pictures
from reelweave.loader.dataset import Sample, open_dataset
from reelweave.loader.dataset.samples.preview import thumbnail
from reelweave.pipelines.evaluation.nearest import clip_frames
from reelweave.pipelines.evaluation.videos import read_video
from reelweave.pipelines.report.gallery import strips
from tests.curate.foreign.foreign_sets import index
from tests.curate.frames.decode.test_lasting_turn import film
from tests.foreign_tars import by_tarfile
from tests.media import read_number, with_display_matrix, write_video
from tests.player import cut_by_copy

SIZE, FRAMES = (192, 128), 24


def turned(folder: Path) -> bytes:
    """A film that its display matrix turns by 90 degrees, against the clock."""
    data = write_video(folder / "a.mp4", (FRAMES,), size=SIZE, options={"g": "8", "crf": "12"}).read_bytes()
    return with_display_matrix(data, 0, -1, 1, 0)


def cells(picture: strips.Strip) -> list[np.ndarray]:
    """The frames of a strip."""
    pixels = np.asarray(Image.open(io.BytesIO(picture.jpeg)))
    return np.split(pixels, picture.frames, axis=1)


def stored(picture: np.ndarray) -> np.ndarray:
    """The stored picture of an upright one."""
    return np.rot90(picture, -1)


def test_strips_and_thumbnails_stand_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = turned(tmp_path)
    found = strips.strip(data, FRAMES)
    assert (found.width, found.height) == (160, 240)
    assert [read_number(stored(cell)) for cell in cells(found)] == [1, 4, 7, 10, 13, 16, 19, 22]
    monkeypatch.setattr(strips, "_MOST_DECODED_PX", 1)
    found = strips.strip(data, FRAMES)
    assert (found.width, found.height) == (160, 240)
    assert {read_number(stored(cell)) for cell in cells(found)} == {0, 8, 16}
    picture = np.asarray(Image.open(io.BytesIO(thumbnail(data))))
    assert picture.shape == (192, 128, 3)
    assert read_number(stored(picture)) == 8


def test_pixels_that_are_not_square_are_stretched(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mp4", (FRAMES,), size=SIZE)
    path = tmp_path / "wide.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        stream.sample_aspect_ratio = Fraction(2, 1)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    found = strips.strip(path.read_bytes(), FRAMES)
    assert (found.width, found.height) == (240, 80)
    assert Image.open(io.BytesIO(thumbnail(path.read_bytes()))).size == (320, 107)


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_messages_of_the_codec_turn_pictures_that_are_sought(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = film(tmp_path / "a.mp4", codec, every=25).read_bytes()
    found = strips.strip(data, 75)
    assert (found.width, found.height) == (160, 240)
    monkeypatch.setattr(strips, "_MOST_DECODED_PX", 1)
    found = strips.strip(data, 75)
    assert (found.width, found.height) == (160, 240)
    assert [read_number(stored(cell)) for cell in cells(found)] == [0, 0, 0, 25, 25, 50, 50, 50]
    assert read_number(stored(np.asarray(Image.open(io.BytesIO(thumbnail(data)))))) == 25


def test_photos_are_turned_by_their_exif(tmp_path: Path) -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", SIZE).save(file, "JPEG", exif=exif)
    assert Image.open(io.BytesIO(thumbnail(file.getvalue()))).size == SIZE[::-1]
    found = strips.strip(file.getvalue(), 1)
    assert (found.width, found.height) == (160, 240)


def test_a_dataset_of_turned_films_is_drawn_upright(tmp_path: Path) -> None:
    by_tarfile(tmp_path / "set/a.tar", [("a", {"mp4": turned(tmp_path), "txt": b"a film"})])
    index(tmp_path / "set")
    dataset = open_dataset(tmp_path / "set")
    sample: Sample = dataset[0]
    assert Image.open(io.BytesIO(thumbnail(sample.clip))).size == SIZE[::-1]
    pixels_CTHW = clip_frames(dataset, 0, SIZE)
    assert read_number(stored(pixels_CTHW[:, 5].transpose(1, 2, 0))) == 5


def test_videos_that_are_evaluated_have_their_shown_size(tmp_path: Path) -> None:
    """A turned one was cut to its middle, in the shape in which it is stored."""
    path = tmp_path / "turned.mp4"
    path.write_bytes(turned(tmp_path))
    video_CTHW, _ = read_video(path)
    assert video_CTHW.shape == (3, FRAMES, *SIZE)
    assert [read_number(stored(picture)) for picture in video_CTHW.transpose(1, 2, 3, 0)] == list(
        range(FRAMES)
    )


@pytest.mark.parametrize(
    "make", [turned, lambda folder: film(folder / "b.mp4", "libx264", every=25).read_bytes()]
)
def test_examples_of_a_search_are_upright(tmp_path: Path, make: Callable[[Path], bytes]) -> None:
    pictures, times_s = shown_pictures(make(tmp_path), 2)
    assert pictures.shape[1:] == (*SIZE, 3)
    count = 24 if make is turned else 75
    numbers = [count // 4, count * 3 // 4]
    assert [read_number(stored(picture)) for picture in pictures] == numbers
    assert times_s.tolist() == pytest.approx([number / 25 for number in numbers])


def test_examples_of_a_search_show_what_players_do(tmp_path: Path) -> None:
    """A piece by copy was refused, since its edit list leaves packets out."""
    whole = write_video(tmp_path / "whole.mp4", (60,), size=SIZE)
    piece = cut_by_copy(whole, tmp_path / "piece.mp4", "-ss 1.0")
    pictures, _ = shown_pictures(piece.read_bytes(), 35)
    assert [read_number(picture) for picture in pictures] == list(range(25, 60))
