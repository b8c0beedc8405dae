"""Reader of a stream's samples: byte ranges, and contents with checks."""

from threading import Lock

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.batch import NO_READS, ReadCounts
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.read.cache import DiskCache
from reelweave.loader.read.fetch import ByteRange, Fetched
from reelweave.loader.storage.remote.retry import counted_retries


class BadSampleError(Exception):
    """Unusable sample; the message contains the reason."""


class SampleReader:
    """Reader of a source's samples.

    Args:
        source: a dataset, or a blend of several.
        cache: disk cache of samples; None for no cache.
        excluded: int64, rising rows that are not read; None for none.
    """

    def __init__(
        self, source: SampleSource, cache: DiskCache | None = None, excluded: IndexArray | None = None
    ) -> None:
        self._excluded = frozenset(() if excluded is None else excluded.tolist())
        self._source = source
        self._index = source.plan_index
        self._cache = cache
        self._counts, self._lock = NO_READS, Lock()

    @property
    def source(self) -> SampleSource:
        """Dataset or blend of the samples."""
        return self._source

    @property
    def latents(self) -> Latents | None:
        """Description of the source's latents; None if it has none."""
        return self._source.latents

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Return bytes of a shard, through the cache."""
        cache, missed = self._cache, False

        def load() -> bytes:
            nonlocal missed
            missed = True
            return self._source.read_range(shard, offset, size)

        with counted_retries() as count:
            try:
                return (
                    load()
                    if cache is None
                    else cache.get(self._cached_as(ByteRange(shard, offset, size)), load)
                )
            finally:
                hits, misses = (0, 0) if cache is None else (int(not missed), int(missed))
                if cache is not None or count.retries:
                    self._count(ReadCounts(count.retries, hits, misses))

    def taken_counts(self) -> ReadCounts:
        """Return the numbers of reads since the last call."""
        with self._lock:
            counts, self._counts = self._counts, NO_READS
        return counts

    def excludes(self, row: int) -> bool:
        """Return whether the sample in an index row is left out by its key."""
        return row in self._excluded

    def byte_range(self, row: int) -> ByteRange:
        """Return the byte range of the sample in an index row."""
        index = self._index
        return ByteRange(index.shard.item(row), index.offset.item(row), index.size.item(row))

    def shape(self, row: int) -> tuple[int, float]:
        """Return the number of frames of a clip, and its frames per second."""
        return self._index.frames.item(row), self._index.fps.item(row)

    def name(self, row: int) -> tuple[str, str]:
        """Return the key of a sample and the path of its shard, for messages."""
        return self._source.key(row), self._source.shard_uri(self._index.shard.item(row))

    def dataset_of(self, row: int) -> int:
        """Return the number of a sample's dataset in a blend; 0 without a blend."""
        return self._source.dataset_of(row)

    def clip(self, row: int, fetched: Fetched) -> TrainingSample:
        """Parse the sample of a row from its bytes.

        Raises:
            BadSampleError: the bytes are missing or contradict the index.
            RunError: the shard could not be read.
        """
        try:
            region = fetched.result()
        except FileNotFoundError:
            raise BadSampleError("the shard is missing") from None
        except EOFError:
            raise BadSampleError("the shard is cut off") from None
        try:
            return self._source.clip(row, region)
        except MachineError:
            raise
        except RunError as error:
            raise BadSampleError(str(error)) from error

    def forget(self, fetched: Fetched) -> None:
        """Drop unusable bytes from the cache, since they may have been damaged in transfer."""
        if self._cache is not None:
            self._cache.drop(self._cached_as(fetched.asked))

    def _count(self, counts: ReadCounts) -> None:
        with self._lock:  # reads run in several threads
            self._counts = self._counts.plus(counts)

    def _cached_as(self, byte_range: ByteRange) -> str:
        uri = self._source.shard_uri(byte_range.shard)
        return f"{uri} {self._source.fingerprint} {byte_range.offset}+{byte_range.size}"
