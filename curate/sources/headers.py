"""Duration, size and codec of sources, read from their headers in parallel child processes."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import av

from reelweave.curate.frames.child_process import Isolated, Quarantined
from reelweave.curate.frames.faults import fault_of
from reelweave.curate.frames.probe import Probe, ProbeConfig, probe
from reelweave.curate.frames.source import open_video
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.base.processors import processors
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, UnansweredError, open_object
from reelweave.loader.storage.steady import whole_reads

_FRAMES_PER_S = 25.0  # frame rate where the header states none
_MAX_SECONDS = 60.0  # time limit per header
_MOST_READERS = 8

_DECODING = {"mpeg4": 0.7, "mpeg2video": 0.7, "hevc": 1.5, "vp9": 1.4, "av1": 1.5, "libdav1d": 1.5}
_DEEP = 1.6
"""Cost per pixel relative to 8-bit H.264, by codec, and for more than 8 bits, which are converted and may be HDR."""

_FRAME_PIXELS = 150_000
"""Cost per frame independent of its size (small pictures, scores, fingerprints), in pixels."""


@dataclass(frozen=True)
class SourceHeader:
    """Properties of a source by its header.

    Attributes:
        seconds: Duration; None where the header does not state it.
        pixels: Pixels per picture.
        effort: Cost of one second of footage, in pixels of 8-bit H.264 decoded, analysed and encoded.
    """

    seconds: float | None
    pixels: int
    effort: float


def read_headers(
    sources: Sequence[SourceRef], storage: StorageConfig, limits: ProbeConfig
) -> dict[str, SourceHeader | None]:
    """Read each source's header, by URI; None for a source without a readable header.

    Raises:
        RunError: The storage failed.
    """
    workers = max(1, min(_MOST_READERS, processors(), len(sources)))
    children: SimpleQueue[Isolated[SourceRef, SourceHeader]] = SimpleQueue()
    for _ in range(workers):
        children.put(Isolated(_Header(storage, limits), attempts=1, max_silence_s=_MAX_SECONDS))

    def read(source: SourceRef) -> SourceHeader | None:
        child = children.get()
        try:
            headers = child(source)
        finally:
            children.put(child)
        return headers[0] if not isinstance(headers, Quarantined) and headers else None

    try:
        with ThreadPoolExecutor(workers) as pool:
            return dict(zip((source.uri for source in sources), pool.map(read, sources), strict=True))
    finally:
        for _ in range(workers):
            children.get().close()


@dataclass(frozen=True)
class _Header:
    storage: StorageConfig
    limits: ProbeConfig

    def __call__(self, source: SourceRef) -> Iterable[SourceHeader]:
        if source.fault:
            return []
        try:
            storage, name = open_object(source.location, self.storage, source.listed_in)
            with (
                storage.open(name) as file,
                whole_reads(file),
                open_video(file, is_decoded=False) as (container, stream),
            ):
                facts = probe(container, stream, self.limits)
                seconds = facts.promised_s
                if seconds is None and container.duration is not None:
                    seconds = container.duration / av.time_base
        except (UsageError, UnansweredError):  # the name is invalid, or its server gone
            return []
        except Exception as error:  # noqa: BLE001 - fault_of raises errors of the environment again
            fault_of(error)
            return []
        return [SourceHeader(seconds, facts.width * facts.height, _effort(facts))]


def _effort(facts: Probe) -> float:
    rate = float(facts.rate or _FRAMES_PER_S)
    deep = _DEEP if any(depth in facts.pixel_format for depth in ("10", "12", "16")) else 1.0
    pixels = facts.width * facts.height * _DECODING.get(facts.codec, 1.0) * deep
    return rate * (pixels + _FRAME_PIXELS)
