"""Files of sampled videos, of which each is made once.

OUT/000012.mp4                  video of request number 12
OUT/records/000012.json         its request; written last, so that a video with a record is done
OUT/latents/000012.safetensors  latents, from the end of denoising until the record is there
OUT/manifest.jsonl              all records, by number
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.settings import first_difference
from reelweave.pipelines.terminal.files import (
    output_target,
    read_text,
    say_replaced,
    unwritable,
    write_output,
    write_whole,
)

MANIFEST = "manifest.jsonl"
_SAME = ("prompt", "image", "image_frames", "checkpoint", "step", "weights", "fps", "config", "approximation")
"""Keys of a record that a restarted run must repeat."""
_FILES = "files"
"""Key of the digest of the files that a video follows from; records of earlier versions have none."""


class Outputs:
    """Output folder of many sampled videos.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def video(self, index: int) -> Path:
        return self._folder / f"{index:06d}.mp4"

    def latents(self, index: int) -> Path:
        return self._folder / "latents" / f"{index:06d}.safetensors"

    def prepare(self) -> None:
        """Create the output folder.

        Raises:
            UsageError: it cannot be created.
        """
        make_folder(self._folder, f"--out {self._folder}")

    def pending(self, expected: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the numbers of the videos that are not done.

        Args:
            expected: values that the record of each video must have.

        Raises:
            UsageError: the folder holds a video of another command.
            RunError: a record is damaged, or its video was changed.
        """
        return [
            index
            for index, expected_record in enumerate(expected)
            if not self._is_done(index, expected_record)
        ]

    def write(self, index: int, video: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write a video, and then its record, which is returned."""
        path = self.video(index)
        write_output(path, video, "--out")
        full_record = {
            "number": index,
            "file": path.name,
            "bytes": len(video),
            "sha256": hashlib.sha256(video).hexdigest(),
            **record,
        }
        write_whole(self._record(index), json.dumps(full_record, ensure_ascii=False).encode(), "--out")
        return full_record

    def write_manifest(self, count: int) -> Path:
        """Write the records of all videos, those of earlier runs included, and return the file."""
        records = (self._record(index) for index in range(count))
        lines = [read_text(path).strip() for path in records if path.exists()]
        path = self._folder / MANIFEST
        write_whole(path, "".join(f"{line}\n" for line in lines).encode(), "--out")
        return path

    def _record(self, index: int) -> Path:
        return self._folder / "records" / f"{index:06d}.json"

    def _is_done(self, index: int, expected: Mapping[str, Any]) -> bool:
        path, video = self._record(index), self.video(index)
        if not path.exists():
            return False
        try:
            record = json.loads(read_text(path))
            stored = {key: record[key] for key in _SAME}
            size = record["bytes"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{path} is damaged; remove it, and {video.name} is made again") from error
        requested = {key: expected[key] for key in _SAME}
        differs = first_difference(stored, requested)
        if not differs and record.get(_FILES, expected[_FILES]) != expected[_FILES]:
            differs = "files of its model, adapters, VAE or text encoder were others under the same names"
        if stored["image"] != requested["image"]:  # digests, which tell a person nothing
            differs = "it was of another image, or of none"
        if differs:
            raise UsageError(
                f"{video} was made otherwise: {differs}; take a new --out, or repeat the command that made it"
            )
        if not video.exists():
            return False
        if video.stat().st_size != size:
            raise RunError(
                f"{video} is not the file that {path} describes; remove both, and it is made again"
            )
        return True


class OneOutput:
    """Output file of a single sampled video.

    Args:
        path: file of the video.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def video(self, index: int) -> Path:  # noqa: ARG002 - there is one
        return self._path

    def latents(self, index: int) -> Path:  # noqa: ARG002
        return self._path.with_name(f"{self._path.name}.latents.safetensors")

    def prepare(self) -> None:
        """Create the folder, and say if a video is replaced; or raise a `UsageError`."""
        output_target(self._path, "--out")
        say_replaced(self._path)
        make_folder(self._path.parent, f"--out {self._path}")

    def write(self, index: int, video: bytes, record: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        write_whole(self._path, video, "--out")
        return dict(record)


def make_folder(folder: Path, named: str) -> None:
    """Create a folder for files that are written hours later.

    Raises:
        UsageError: files cannot be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UsageError(f"{named} cannot be written: {folder} is a file; name another folder") from error
    except OSError as error:
        raise unwritable(named, error) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{named} cannot be written: no permission")
