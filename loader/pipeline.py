"""From planned microbatches to pixels or encoded clips: planned, read and decoded ahead, in threads, in order."""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Self

from loader.ahead import ahead
from loader.batch import BadSample, Microbatch
from loader.buckets import Bucket
from loader.contents import Contents, Decoded, Encoded
from loader.dataset.clip import Clip
from loader.errors import RunError
from loader.fetch import Fetched, Fetcher
from loader.plan import EpochPlan, PlannedMicrobatch
from loader.position import Position
from loader.samples import BadSampleError, Samples
from loader.stream_config import StreamConfig

_PLANNED_AHEAD = 8
_STAND_INS = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Planned:
    """A microbatch of this rank: where it stands, and what its step holds.

    Attributes:
        plan: of its epoch.
        micro: its samples.
        bucket: their shape.
        length: S of the bucket.
        slots: microbatches of this rank in the step.
        samples: of the step on all ranks.
        before: where the stream stands before the step.
        after: and behind it.
    """

    plan: EpochPlan
    micro: PlannedMicrobatch
    bucket: Bucket
    length: int
    slots: int
    samples: int
    before: Position
    after: Position


class _Read(NamedTuple):
    """A microbatch whose bytes are on their way."""

    planned: Planned
    fetched: list[Fetched]
    size: int


class _Loaded(NamedTuple):
    """A sample whose content is in place, and those that it stands in for."""

    key: str
    caption: str
    passed: int
    bad: list[BadSample]


class _Decoding(NamedTuple):
    """A microbatch that is complete when its loads are."""

    planned: Planned
    contents: Contents
    loads: list[Future[list[_Loaded]]]


class Pipeline:
    """Threads that read and decode; a context manager.

    Args:
        samples: of the dataset.
        config: of the stream.
        pin_memory: whether pixels or clips lie in page-locked memory.
    """

    def __init__(self, samples: Samples, config: StreamConfig, pin_memory: bool) -> None:
        self._samples, self._config, self._pin_memory = samples, config, pin_memory
        self._fetcher = Fetcher(samples.read, config.readers)
        self._decoders = ThreadPoolExecutor(config.workers, thread_name_prefix="decode")
        self._seen, self._bad = 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._decoders.shutdown(wait=True, cancel_futures=True)
        self._fetcher.close()

    def run(self, planned: Iterator[Planned]) -> Iterator[Microbatch]:
        """The microbatches, in order."""
        reading: deque[_Read] = deque()
        decoding: deque[_Decoding] = deque()
        may_read_on = True
        for one in ahead(planned, _PLANNED_AHEAD):
            reading.append(self._read(one))
            while reading and len(decoding) <= self._config.prefetch:
                decoding.append(self._decode(reading.popleft()))
            # Reading gains one microbatch on decoding per turn, so that the first one is not waited for longer.
            may_read_on = not may_read_on and sum(read.size for read in reading) < self._read_ahead
            if len(decoding) > self._config.prefetch and not may_read_on:
                yield self._done(decoding.popleft())
        while reading or decoding:
            while reading and len(decoding) <= self._config.prefetch:
                decoding.append(self._decode(reading.popleft()))
            yield self._done(decoding.popleft())

    @property
    def _read_ahead(self) -> int:
        return self._config.read_ahead_mib << 20

    def _read(self, planned: Planned) -> _Read:
        places = [self._samples.place(row) for row in planned.micro.rows.tolist()]
        return _Read(planned, self._fetcher.fetch(places), sum(place.size for place in places))

    def _decode(self, read: _Read) -> _Decoding:
        samples, bucket = len(read.fetched), read.planned.bucket
        numbered = list(enumerate(read.fetched))
        contents: Contents
        if self._config.decode:
            contents = Decoded(samples, bucket, self._config.decoder, self._pin_memory)
            jobs = [[one] for one in numbered]
        else:
            # Without decoding a sample is less work than a job of its own.
            contents, jobs = Encoded(samples, bucket, self._pin_memory), [numbered]
        loads = [self._decoders.submit(self._load_some, read.planned, job, contents) for job in jobs]
        return _Decoding(read.planned, contents, loads)

    def _load_some(
        self, planned: Planned, numbered: list[tuple[int, Fetched]], contents: Contents
    ) -> list[_Loaded]:
        return [self._load(planned, number, fetched, contents) for number, fetched in numbered]

    def _load(self, planned: Planned, number: int, fetched: Fetched, contents: Contents) -> _Loaded:
        """Fills in one sample, or the first good one of those that may stand in for it."""
        micro, bad = planned.micro, list[BadSample]()
        own = (micro.rows.item(number), micro.passes.item(number))
        for row, passed in chain([own], islice(planned.plan.stand_ins(micro, number), _STAND_INS)):
            if bad:
                [fetched] = self._fetcher.fetch([self._samples.place(row)])
            try:
                clip = self._samples.clip(row, fetched)
                self._fill(row, number, clip, passed, planned.bucket, contents)
            except BadSampleError as error:
                bad.append(BadSample(*self._samples.name(row), self._samples.place(row).offset, str(error)))
                continue
            return _Loaded(clip.key, clip.caption, passed, bad)
        raise RunError(
            f"{len(bad)} samples of bucket {planned.bucket} in a row cannot be used, the first: {bad[0]}"
        )

    def _fill(
        self, row: int, number: int, clip: Clip, passed: int, bucket: Bucket, contents: Contents
    ) -> None:
        words = f"{self._config.seed}/{passed}/{clip.key}"
        frames_T = self._config.buckets.sampling.frames(words, *self._samples.shape(row), bucket.frames)
        try:
            contents.fill(number, clip, frames_T)
        except RunError as error:
            raise BadSampleError(str(error)) from error

    def _done(self, decoding: _Decoding) -> Microbatch:
        planned, micro = decoding.planned, decoding.planned.micro
        loaded = list(chain.from_iterable(load.result() for load in decoding.loads))
        bad = tuple(chain.from_iterable(one.bad for one in loaded))
        self._count(len(loaded), bad)
        video_BCTHW, media = decoding.contents.done()
        return Microbatch(
            bucket=planned.bucket,
            length=planned.length,
            keys=tuple(one.key for one in loaded),
            captions=tuple(one.caption for one in loaded),
            passes=tuple(one.passed for one in loaded),
            video_BCTHW=video_BCTHW,
            step=planned.before.step,
            epoch=planned.before.epoch,
            weight=micro.weight,
            step_samples=planned.samples,
            slot=micro.slot,
            slots=planned.slots,
            after=planned.after if micro.slot + 1 == planned.slots else planned.before,
            bad=bad,
            media=media,
        )

    def _count(self, samples: int, bad: tuple[BadSample, ...]) -> None:
        for sample in bad:
            _log.warning("%s; another stands in for it", sample)
        self._seen, self._bad = self._seen + samples, self._bad + len(bad)
        config = self._config
        if self._bad > config.max_bad + config.max_bad_share * self._seen:
            raise RunError(
                f"{self._bad} of {self._seen} samples cannot be used, more than stream.max_bad={config.max_bad} and"
                f" stream.max_bad_share={config.max_bad_share:g} allow; the last: {bad[-1]};"
                " run `reelweave verify` on the dataset"
            )
