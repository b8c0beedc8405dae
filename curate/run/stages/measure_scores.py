"""Stage that measures the scores which clips of closed sources lack, from the clips: no source is read."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import av
import numpy as np

from reelweave.curate.filters import ClipSample, ScoreConfig, loudness_dbfs, scores
from reelweave.curate.filters.measure import ADDED, lacking
from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record
from reelweave.curate.models.device import one_thread
from reelweave.curate.run.stages.clip_stages import clip_bytes
from reelweave.curate.shots.scale import Scaler
from reelweave.curate.source_pass.cut_source import STAGE as CUT
from reelweave.curate.source_pass.cut_source import source_id
from reelweave.curate.source_pass.sampling import FrameStats, PictureCollector
from reelweave.curate.source_pass.tasks import ClosedSource, CurationTask, MeasureTask, UndoneSource
from reelweave.loader.errors import MachineError, refuse_shortage

STAGE = "scores"
"""Name of the stage, for timings and progress."""


@dataclass(frozen=True)
class MeasureScores:
    """Function from closed sources to the same with all scores, which the ledger then holds.

    Attributes:
        config: Measurement of clips.
        ledger: Ledger of entries and staged clips.
    """

    config: ScoreConfig
    ledger: Ledger

    def __call__(self, tasks: Sequence[CurationTask]) -> Iterator[CurationTask]:
        """Yield each source closed anew."""
        for task in tasks:
            if not isinstance(task, MeasureTask):
                yield task
                continue
            try:
                with one_thread():
                    yield self._close_source(task)
            except MachineError as error:
                yield UndoneSource(task.source.uri, str(error))

    def _close_source(self, task: MeasureTask) -> ClosedSource:
        records = tuple(self._measure(task, record) for record in task.summary.records)
        summary = replace(task.summary, records=records, measured=dict(ADDED))
        self.ledger.entries.write(CUT, task.fingerprint, source_id(task.source), summary)
        return ClosedSource(task.source.uri, summary, fingerprint=task.fingerprint)

    def _measure(self, task: MeasureTask, record: Record) -> Record:
        if not record.sha256:
            return record
        names = set(lacking(task.summary.measured or {}))
        data = clip_bytes(self.ledger, record.clip_id, task.places.get(record.clip_id))
        new_scores = _measured_again(data, record, names, self.config)
        old_scores = {name: value for name, value in record.scores.items() if name not in names}
        return replace(record, scores={**old_scores, **new_scores})


def _measured_again(data: bytes, record: Record, names: set[str], config: ScoreConfig) -> dict[str, float]:
    """Return some scores of a clip, measured from what was encoded; without those that cannot be measured.

    Pictures, motion vectors and sound are those of the clip, where the pass over a source takes those of the source.

    Args:
        data: Bytes of the clip.
        record: Its record.
        names: Names of the scores.
        config: Measurement of clips.
    """
    if "ocr_share" not in names:
        config = config.model_copy(update={"ocr": "none"})
    if "static_graphic" not in names:
        config = config.model_copy(update={"graphics": False})
    try:
        all_scores = scores(_sample(data, record, config))
    except (SourceError, av.error.FFmpegError, ValueError) as error:
        refuse_shortage(error)
        return {}
    return {name: value for name, value in all_scores.items() if name in names}


def _sample(data: bytes, record: Record, config: ScoreConfig) -> ClipSample:
    stats, small = FrameStats(), Scaler(PICTURE)
    with io.BytesIO(data) as file, open_video(file, motion_vectors=True) as (container, stream):
        collector = PictureCollector(stream.codec_context.name, config)
        for index, frame in enumerate(container.decode(stream)):
            collector.push(index / record.fps, 1 / record.fps, frame, frame)
            stats.push(small(frame))
    collected = collector.take()
    luma, steps = stats.of(np.arange(record.frames))
    return ClipSample(
        pictures=collected.pictures,
        times_s=collected.times_s,
        luma=luma,
        steps=steps,
        motion=collected.motion.motion,
        motion_local=collected.motion.motion_local,
        vectors_missing=collected.motion.vectors_missing,
        width=record.width,
        height=record.height,
        frames=record.frames,
        fps=record.fps,
        duration_s=record.duration_s,
        # A sound track that could not be kept was not measured either.
        audio_dbfs=None if record.audio.startswith("none (") else loudness_dbfs(data),
        text=collected.text,
        edges=collected.edges,
    )
