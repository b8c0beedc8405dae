"""Samples as a stream reads them: where their bytes lie, and what they hold."""

from loader.blend.source import SampleSource
from loader.dataset.clip import TrainingSample
from loader.dataset.latents import Latents
from loader.errors import RunError
from loader.read.cache import DiskCache
from loader.read.fetch import ByteRange, Fetched


class BadSampleError(Exception):
    """A sample cannot be used; the text says why."""


class SampleReader:
    """The samples of a source.

    Args:
        source: a dataset, or a blend of several.
        cache: where samples are kept that were read before, if anywhere.
    """

    def __init__(self, source: SampleSource, cache: DiskCache | None = None) -> None:
        self._source = source
        self._index = source.plan_index
        self._cache = cache

    @property
    def latents(self) -> Latents | None:
        """What is said of the latents they have; None where they have none."""
        return self._source.latents

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Bytes of a shard, from the cache where they are in it."""
        if self._cache is None:
            return self._source.read_range(shard, offset, size)
        name = self._cached_as(ByteRange(shard, offset, size))
        return self._cache.get(name, lambda: self._source.read_range(shard, offset, size))

    def byte_range(self, row: int) -> ByteRange:
        """Where the sample in a row of the index lies."""
        index = self._index
        return ByteRange(index.shard.item(row), index.offset.item(row), index.size.item(row))

    def shape(self, row: int) -> tuple[int, float]:
        """Frames of a clip, and how many of them are a second."""
        return self._index.frames.item(row), self._index.fps.item(row)

    def name(self, row: int) -> tuple[str, str]:
        """Key of a sample and path of its shard, for messages."""
        return self._source.key(row), self._source.shard_uri(self._index.shard.item(row))

    def clip(self, row: int, fetched: Fetched) -> TrainingSample:
        """What a row holds, from its bytes.

        Raises:
            BadSampleError: they are not there or not those that the index promises.
            RunError: the place they lie at cannot be read.
        """
        try:
            region = fetched.result()
        except FileNotFoundError:
            raise BadSampleError("the shard is missing") from None
        except EOFError:
            raise BadSampleError("the shard is cut off") from None
        try:
            return self._source.clip(row, region)
        except RunError as error:
            raise BadSampleError(str(error)) from error

    def forget(self, fetched: Fetched) -> None:
        """Drops from the cache what held bytes that cannot be used: they may have been damaged on their way."""
        if self._cache is not None:
            self._cache.drop(self._cached_as(fetched.asked))

    def _cached_as(self, place: ByteRange) -> str:
        return f"{self._source.shard_uri(place.shard)} {self._source.fingerprint} {place.offset}+{place.size}"
