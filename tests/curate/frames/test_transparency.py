"""Transparent pixels are shown over black, and the accounting says so."""

from pathlib import Path

import numpy as np
import pytest

from tests.cutting import curated, pictures
from tests.player import SIZE, ffmpeg
from tests.thorough import but

FRAMES = 20
CASES = {
    "vp9.webm": "-c:v libvpx-vp9 -pix_fmt yuva420p -b:v 0 -crf 10 -auto-alt-ref 0 -deadline realtime -cpu-used 8",
    "vp8.webm": "-c:v libvpx -pix_fmt yuva420p -b:v 2M -auto-alt-ref 0",
    "prores.mov": "-c:v prores_ks -profile:v 4 -pix_fmt yuva444p10le",
    "qtrle.mov": "-c:v qtrle -pix_fmt argb",
    "png.mov": "-c:v png -pix_fmt rgba",
    "grey.mov": "-c:v png -pix_fmt ya8",
    "ffv1.mkv": "-c:v ffv1 -pix_fmt bgra",
    "utvideo.avi": "-c:v utvideo -pix_fmt gbrap",
    "film.apng": "-f apng -pix_fmt rgba",
}
DECODERS = {"vp9.webm": "-c:v libvpx-vp9", "vp8.webm": "-c:v libvpx"}


def written(path: Path, encoder: str, alpha: tuple[int, int, int] = (0, 255, 128)) -> Path:
    """A film of a hidden, a shown and a half transparent part."""
    width, height = SIZE
    raw = []
    for number in range(FRAMES):
        picture = np.zeros((height, width, 4), np.uint8)
        picture[..., :3] = (200, 40 + 4 * number, 20)
        picture[..., 3] = alpha[0]
        picture[32:96, 40:120, 3] = alpha[1]
        picture[96:, :, 3] = alpha[2]
        raw.append(picture.tobytes())
    words = f"-f rawvideo -pix_fmt rgba -s {width}x{height} -r 25 -i - {encoder} -y {path}"
    ffmpeg(words.split(), b"".join(raw))
    return path


def grown(path: Path, out: Path) -> tuple[str, np.ndarray]:
    ((record, clip),) = curated(path, out, spans={"min_clip_s": 0.5}, cut={"crf": 8})
    assert record.state == "kept", record.reason
    return record.reason, np.array(pictures(clip), float)


@pytest.mark.parametrize("name", but(("vp9.webm", "prores.mov", "png.mov"), CASES))
def test_transparent_pixels_are_shown_over_black(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, CASES[name])
    reason, ours = grown(path, tmp_path / "out")
    assert reason == "transparent pixels shown over black"
    rgb = not name.startswith(("vp", "prores"))
    form = "gbrp" if rgb else "yuv444"
    black = f"color=black:s={SIZE[0]}x{SIZE[1]}:r=25,format={form if rgb else 'yuv444p'}[black]"
    laid = f"{black};[black][0:v]overlay=shortest=1:format={form}{',scale=out_color_matrix=bt709' if rgb else ''}"
    other = tmp_path / "other.avi"
    words = ["-i", str(path), "-filter_complex", f"{laid},format=yuv420p"]
    ffmpeg([*DECODERS.get(name, "").split(), *words, "-c:v", "rawvideo", "-y", str(other)])
    theirs = np.array(pictures(other), float)[: len(ours)]
    assert len(ours) == FRAMES
    assert np.abs(ours[: len(theirs)] - theirs).mean() < 2


def test_films_whose_alpha_hides_nothing_stay_as_they_are(tmp_path: Path) -> None:
    path = written(tmp_path / "film.mov", CASES["png.mov"], alpha=(255, 255, 255))
    reason, _ = grown(path, tmp_path / "out")
    assert reason == ""


def test_the_fourth_byte_of_raw_pictures_is_no_alpha(tmp_path: Path) -> None:
    path = written(tmp_path / "film.avi", "-c:v rawvideo -pix_fmt bgra", alpha=(0, 0, 0))
    reason, ours = grown(path, tmp_path / "out")
    assert reason == ""
    assert ours[:, : SIZE[1]].mean() > 40
