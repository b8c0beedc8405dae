"""WebDataset tars as other people write them, with numbered videos and pictures in them."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path

import webdataset
from PIL import Image

from tests.media import numbered_frame, write_video

Contents = Mapping[str, bytes]


def video(folder: Path, scene: int, frames: int = 12, suffix: str = "mp4", **options: object) -> bytes:
    codec = {"webm": "libvpx-vp9", "avi": "mpeg4"}.get(suffix, "libx264")
    path = folder / f"{scene}-{frames}.{suffix}"
    made = {"size": (96, 64), "codec": codec, "rate": Fraction(25), "first_scene": scene, **options}
    return write_video(path, (frames,), **made).read_bytes()


def picture(number: int, kind: str = "jpeg", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(numbered_frame(number, 96, 64)).save(buffer, kind, **options)
    return buffer.getvalue()


def by_tarfile(
    path: Path, samples: Iterable[tuple[str, Contents]], kind: int = tarfile.PAX_FORMAT, folders: bool = False
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=kind) as tar:
        for key, contents in samples:
            if folders:
                folder = tarfile.TarInfo(key.rpartition("/")[0])
                folder.type = tarfile.DIRTYPE
                tar.addfile(folder)
            for suffix, data in contents.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def by_webdataset(path: Path, samples: Iterable[tuple[str, Contents]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path), encoder=False) as writer:
        for key, contents in samples:
            writer.write({"__key__": key, **contents})
    return path
