"""Samples of a dataset as a stream reads them: where the bytes lie, and what they hold."""

import hashlib
from typing import NamedTuple

from loader.dataset import Dataset
from loader.fetch import Fetched, Place

_COLUMNS = ["key", "shard", "caption", "frames", "fps", "sha256"]
_MEDIA = "mp4"


class BadSampleError(Exception):
    """A sample cannot be used; the text says why."""


class Clip(NamedTuple):
    """What is trained on.

    Attributes:
        key: of the sample.
        caption: of the sample.
        frames: of the clip.
        fps: of the clip.
        media: the encoded clip.
    """

    key: str
    caption: str
    frames: int
    fps: float
    media: memoryview


class Samples:
    """Reads the samples of a dataset.

    Args:
        dataset: where they lie.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def read(self, shard: str, offset: int, size: int) -> bytes:
        """Bytes of a shard."""
        return self._dataset.read_range(shard, offset, size)

    def place(self, row: int) -> Place | None:
        """Where the clip in a row of the index lies; None where it has none."""
        found = self._dataset.members(_MEDIA).place(row)
        return None if found is None else Place(*found)

    def key(self, row: int) -> str:
        """Key of the sample in a row."""
        return str(self._dataset.index.column("key")[row].as_py())

    def clip(self, row: int, fetched: Fetched | None) -> Clip:
        """The clip in a row, from its bytes.

        Raises:
            BadSampleError: they are not there or not those that the index promises.
            RunError: the place they lie at cannot be read.
        """
        if fetched is None:
            raise BadSampleError(f"it has no member {_MEDIA}")
        try:
            media = fetched.result()
        except FileNotFoundError:
            raise BadSampleError("the shard is missing") from None
        except EOFError:
            raise BadSampleError("the shard is cut off") from None
        sample = self._dataset.index.slice(row, 1).select(_COLUMNS).to_pylist()[0]
        if hashlib.sha256(media).hexdigest() != sample["sha256"]:
            raise BadSampleError("it is damaged: its clip is not the one whose sha256 index.parquet holds")
        return Clip(sample["key"], sample["caption"], sample["frames"], sample["fps"], media)
