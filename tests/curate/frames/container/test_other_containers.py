"""Films in containers that are not read are called by their names, and the named command makes them readable."""

import re
import shlex
from pathlib import Path

import pytest

from reelweave.curate.frames.container.other_containers import other_container
from reelweave.curate.frames.source import SourceError, open_video
from tests.player import ffmpeg
from tests.thorough import but

SIZE = "s=176x144:r=25:d=0.4"
FILMS = {
    "a.wtv": (SIZE, "-c:v mpeg2video -c:a mp2", "WTV"),
    "a.nut": (SIZE, "-c:v mpeg4 -c:a mp2", "NUT"),
    "a.gxf": ("s=720x576:r=25:d=0.4", "-c:v mpeg2video -c:a pcm_s16le", "GXF"),
    "a.swf": (SIZE, "-c:v flv -c:a libmp3lame -ar 44100", "SWF (Flash)"),
    "a.roq": ("s=256x128:r=30:d=0.4", "-c:v roqvideo -c:a roq_dpcm -ar 22050", "RoQ"),
    "a.mjpg": (SIZE, "-c:v mjpeg -pix_fmt yuvj420p -an -f mpjpeg", "JPEG pictures in parts (mpjpeg)"),
}


@pytest.mark.parametrize("name", but(("a.wtv", "a.roq"), FILMS))
def test_a_film_in_a_container_that_is_not_read_says_what_to_do(name: str, tmp_path: Path) -> None:
    size, encoder, container = FILMS[name]
    path, other = tmp_path / name, tmp_path / "other.mkv"
    ffmpeg(f"-f lavfi -i testsrc2={size} -f lavfi -i sine=d=0.4:r=48000 {encoder} -y {path}".split())
    words = re.escape(f"it is a film in {container}, a container that is not read")
    with path.open("rb") as file, pytest.raises(SourceError, match=words) as error, open_video(file):
        pass
    (command,) = re.findall("`ffmpeg (.*)`", str(error.value))
    ffmpeg(shlex.split(command.replace("FILE.mkv", str(other)).replace("FILE", str(path))))
    with other.open("rb") as file, open_video(file) as (opened, stream):
        assert sum(1 for _ in opened.decode(stream)) >= 9


@pytest.mark.parametrize(
    ("head", "container"),
    [
        (b"BIKi\x10\0\0\0", "Bink"),
        (b"SMK2\x40\x01\0\0", "Smacker"),
        (b"\0\0\x01\0RED1\0\0", "R3D (RED)"),
        (b"\x10\0\0\0\x12\xaf\x05\0", "FLIC"),
        (b"MythTVVideo\0" + bytes(9), "NuppelVideo"),
    ],
)
def test_the_first_bytes_tell_a_container(head: bytes, container: str) -> None:
    assert f"it is a film in {container}, " in (other_container(head) or "")


@pytest.mark.parametrize("head", [b"", bytes(40), b"words", b"RIFF\x10\0\0\0AVI LIST", b"--help\n"])
def test_other_first_bytes_tell_none(head: bytes) -> None:
    assert other_container(head) is None
