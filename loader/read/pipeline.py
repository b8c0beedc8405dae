"""Read pipeline: planned microbatches to pixels or encoded clips, prefetched in threads, in plan order."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Self

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.base.prefetch import prefetch
from reelweave.loader.batch import BadSample, Microbatch, Pack
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.read.assembly import RankMicrobatch, assemble_batch
from reelweave.loader.read.collate import CollatedSize, Collator, DecodedCollator, EncodedCollator
from reelweave.loader.read.fetch import Fetched, Fetcher
from reelweave.loader.read.frame_times import variable_times
from reelweave.loader.read.sample_reader import BadSampleError, SampleReader
from reelweave.loader.read.share import DecodedSlice, LoadedSample, Share, divide
from reelweave.loader.read.stream_config import StreamConfig

_PLANNED_AHEAD = 8
_STAND_INS = 16
_REPLACED = "another stands in for it"
_log = logging.getLogger(__name__)


class _InFlight(NamedTuple):
    """Microbatch being read: this rank's numbers in it, and the future bytes of those that are not excluded."""

    planned: RankMicrobatch
    owners: list[int]
    own: list[int]
    fetched: dict[int, Fetched]
    size: int


class _Decoding(NamedTuple):
    """Microbatch being decoded, complete when its loads are."""

    planned: RankMicrobatch
    owners: list[int]
    contents: Collator
    loads: list[Future[list[LoadedSample]]]


class ReadPipeline:
    """Threads that read and decode; a context manager.

    Args:
        samples: reader of the dataset's samples.
        config: configuration of the stream.
        pin_memory: True for page-locked memory of pixels or clips.
        share: ranks that read the same microbatches together; None for a rank that reads alone.
        captioned: function from row, content and pass of a sample to the content with the caption of that pass.
        wants: function that says, before a microbatch is decoded, whether it is still needed; others give no batch.
    """

    def __init__(
        self,
        samples: SampleReader,
        config: StreamConfig,
        pin_memory: bool,
        share: Share | None = None,
        captioned: Callable[[int, TrainingSample, int], TrainingSample] = lambda _row, sample, _passed: (
            sample
        ),
        wants: Callable[[RankMicrobatch], bool] = lambda _: True,
    ) -> None:
        self._captioned, self._wants = captioned, wants
        self._samples, self._config, self._pin_memory, self._share = samples, config, pin_memory, share
        self._latents = samples.latents if config.latents and config.decode else None
        self._rank, self._totals = (0, [0]) if share is None else (share.rank, [0] * share.size)
        # Cache entries must not depend on the requests planned beside them, so a cache disables coalescing.
        self._fetcher = Fetcher(samples.read, config.readers, together=config.cache is None)
        self._decoders = ThreadPoolExecutor(config.workers, thread_name_prefix="decode")
        self._seen, self._bad, self._known = 0, 0, set[tuple[str, int]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._decoders.shutdown(wait=True, cancel_futures=True)
        self._fetcher.close()

    def run(self, planned: Iterator[RankMicrobatch]) -> Iterator[Microbatch | Pack]:
        """Yield the batches, in plan order."""
        with closing(self._parts(planned)) as parts:
            if self._share is None:
                yield from map(self._batch, parts)
                return
            with closing(self._share.exchange(parts, self._pin_memory)) as exchanged:
                yield from map(self._batch, exchanged)

    def _parts(
        self, planned: Iterator[RankMicrobatch]
    ) -> Generator[DecodedSlice[RankMicrobatch], None, None]:
        reading: deque[_InFlight] = deque()
        decoding: deque[_Decoding] = deque()
        may_read_on = True
        for microbatch in prefetch(planned, _PLANNED_AHEAD):
            reading.append(self._read(microbatch))
            self._decode_ahead(reading, decoding)
            # Reading gains one microbatch on decoding per turn, which keeps the wait for the first one short.
            may_read_on = not may_read_on and sum(read.size for read in reading) < self._read_ahead
            if self._has_enough(decoding) and not may_read_on:
                yield _part(decoding.popleft())
        while reading or decoding:
            self._decode_ahead(reading, decoding)
            if decoding:
                yield _part(decoding.popleft())

    def _decode_ahead(self, reading: deque[_InFlight], decoding: deque[_Decoding]) -> None:
        while reading and not self._has_enough(decoding):
            if self._wants((read := reading.popleft()).planned):
                decoding.append(self._decode(read))

    def _has_enough(self, decoding: deque[_Decoding]) -> bool:
        """Return whether the prefetch budget is full.

        Microbatches decoded by peer ranks count against a larger budget; otherwise ranks would serialize when B = 1.
        """
        loading = sum(bool(part.loads) for part in decoding)
        return loading > self._config.prefetch or len(decoding) > self._config.prefetch * len(self._totals)

    @property
    def _read_ahead(self) -> int:
        return self._config.read_ahead_mib << 20

    def _read(self, planned: RankMicrobatch) -> _InFlight:
        ranges = [self._samples.byte_range(row) for row in planned.micro.rows.tolist()]
        owners, self._totals = divide([byte_range.size for byte_range in ranges], self._totals)
        local_indices = [index for index, owner in enumerate(owners) if owner == self._rank]
        read = [
            index for index in local_indices if not self._samples.excludes(planned.micro.rows.item(index))
        ]
        fetched = self._fetcher.fetch([ranges[index] for index in read])
        return _InFlight(
            planned,
            owners,
            local_indices,
            dict(zip(read, fetched, strict=True)),
            sum(ranges[index].size for index in read),
        )

    def _decode(self, read: _InFlight) -> _Decoding:
        planned, indices = read.planned, read.own
        contents: Collator
        if self._config.decode:
            buckets = [planned.buckets[index] for index in indices]
            contents = DecodedCollator(buckets, self._config.decoder, self._pin_memory, self._latents)
            jobs = [[index] for index in indices]
        else:
            # Without decoding, one job per sample would cost more than the work itself.
            contents, jobs = EncodedCollator(len(indices), self._pin_memory), [indices] if indices else []
        place_of = {index: slot for slot, index in enumerate(indices)}

        def load(job: list[int]) -> list[LoadedSample]:
            return [self._load(planned, n, read.fetched.get(n), contents, place_of[n]) for n in job]

        loads = [self._decoders.submit(load, job) for job in jobs]
        return _Decoding(planned, read.owners, contents, loads)

    def _load(
        self, planned: RankMicrobatch, index: int, fetched: Fetched | None, contents: Collator, slot: int
    ) -> LoadedSample:
        """Load one sample, its first usable replacement, or a black filler if there is none or it is excluded."""
        micro, bucket, bad = planned.micro, planned.buckets[index], list[BadSample]()
        # The sample itself, then those that may stand in for it, until one is usable.
        row_pass, excluded = (micro.rows.item(index), micro.passes.item(index)), fetched is None
        for row, passed in () if excluded else chain([row_pass], self._stand_ins(planned, index)):
            if bad or fetched is None:
                [fetched] = self._fetcher.fetch([self._samples.byte_range(row)])
            try:
                clip = self._captioned(row, self._samples.clip(row, fetched), passed)
                frames_T = self._frames(row, clip, passed, bucket)
                filled = _take_clip(contents, slot, clip, frames_T, passed)
            except BadSampleError as error:
                self._samples.forget(fetched)
                bad.append(
                    BadSample(*self._samples.name(row), self._samples.byte_range(row).offset, str(error))
                )
                continue
            frames = [] if self._config.decode else frames_T.tolist()
            dataset = self._samples.dataset_of(row)
            return LoadedSample(
                clip.key,
                clip.caption,
                passed,
                filled.size,
                frames,
                bad,
                filled.text,
                dataset=dataset,
                row=row,
            )
        # None was: black frames keep the shape of the batch, and count as lost.
        blank, frames = (
            contents.blank(slot, bucket),
            list(range(0 if self._config.decode else bucket.frames)),
        )
        key, _ = self._samples.name(row_pass[0])
        dataset = self._samples.dataset_of(row_pass[0])
        return LoadedSample(
            key,
            "",
            row_pass[1],
            blank.size,
            frames,
            bad,
            blank.text,
            dataset=dataset,
            lost=True,
            row=row_pass[0],
        )

    def _stand_ins(self, planned: RankMicrobatch, index: int) -> Iterator[tuple[int, int]]:
        """Return row and passes of the samples that may replace a bad one."""
        draws = _distinct(planned.plan.stand_ins(planned.micro, index))
        return islice((draw for draw in draws if not self._samples.excludes(draw[0])), _STAND_INS)

    def _frames(self, row: int, clip: TrainingSample, passed: int, bucket: Bucket) -> IndexArray:
        words = f"{self._config.seed}/{passed}/{clip.key}"
        sampling = self._config.buckets.sampling
        times_s = variable_times(clip) if sampling.mode == "fps" else None
        return sampling.frames(words, *self._samples.shape(row), bucket.frames, times_s)

    def _batch(self, part: DecodedSlice[RankMicrobatch]) -> Microbatch | Pack:
        self._count(part.loaded)
        config, reads = self._config, self._samples.taken_counts()
        source = self._samples.source
        return assemble_batch(part, source, self._latents, config.decode, config.denominator, reads)

    def _count(self, loaded: Sequence[LoadedSample]) -> None:
        """Count bad samples; a few that come again and again, as in a small bucket, are those few.

        Raises:
            RunError: they are more than the configuration allows.
        """
        # Every bad sample is said; a position counts once, however often it comes again.
        self._seen += len(loaded)
        for loaded_sample in loaded:
            for sample in loaded_sample.bad:
                effect = (
                    "no other of its bucket stands in, so its weight is missing"
                    if loaded_sample.lost
                    else _REPLACED
                )
                _log.warning("%s; %s", sample, effect)
                self._known.add((sample.shard, sample.offset))
            self._bad += bool(loaded_sample.bad)
        # Both limits must be exceeded: the number of bad samples, and their share of all.
        config = self._config
        if (
            len(self._known) > config.max_bad
            and self._bad > config.max_bad + config.max_bad_share * self._seen
        ):
            last = next(sample.bad[-1] for sample in reversed(loaded) if sample.bad)
            raise RunError(
                f"{self._bad} of {self._seen} samples cannot be used, more than stream.max_bad={config.max_bad} and"
                f" stream.max_bad_share={config.max_bad_share:g} allow; the last: {last};"
                " run `reelweave verify` on the dataset"
            )


def _part(decoding: _Decoding) -> DecodedSlice[RankMicrobatch]:
    planned, owners, contents, loads = decoding
    loaded = [sample for load in loads for sample in load.result()]
    return DecodedSlice(planned, owners, contents.join(), contents.contexts(), loaded)


def _distinct(draws: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first draw of each row; a blend may draw one row many times."""
    rows_seen = set[int]()
    for row, passed in draws:
        if row not in rows_seen:
            rows_seen.add(row)
            yield row, passed


def _take_clip(
    contents: Collator, slot: int, clip: TrainingSample, frames_T: IndexArray, passed: int
) -> CollatedSize:
    try:
        return contents.fill(slot, clip, frames_T, passed)
    except MachineError:
        raise
    except RunError as error:
        raise BadSampleError(str(error)) from error
