"""Scores of loudness and silence."""

import io
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from reelweave.curate.filters.sample import ClipSample, Floats
from reelweave.loader.base.operations import charged
from reelweave.loader.errors import refuse_shortage

WINDOW_S = 0.1
SILENCE_DBFS = -60.0
"""Loudness below which a window is silent, the default of FFmpeg's ``silencedetect``."""

_FLOOR_DBFS = -120.0
_MAX_RATE = 384_000
_MAX_CHANNELS = 64
_MAX_LACKING = 2  # windows at the ends that packets of sound may leave open
_AT_ONCE = 32  # frames that are measured together
_MISCOUNTED = 8  # channels from which PyAV misreads planes
_PLANAR = {"u8p": np.uint8, "s16p": np.int16, "s32p": np.int32, "fltp": np.float32, "dblp": np.float64}


def loudness_dbfs(data: bytes) -> Floats:
    """Measure the loudness of the sound track of an encoded clip, decoded once in one thread.

    Args:
        data: Bytes of a media file.

    Returns:
        float32 [windows]: root mean square of every 100 ms over all channels, dBFS, at least -120. A broken
        track has the windows before its first error. The array is empty without a sound track.
    """
    meter = LoudnessMeter()
    try:
        with io.BytesIO(data) as file, av.open(file, mode="r", metadata_errors="replace") as container:
            if not container.streams.audio:
                return np.zeros(0, np.float32)
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            for frame in container.decode(stream):
                meter.push(frame)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        refuse_shortage(error)  # else score whatever decoded before the error
    return meter.take()


class LoudnessMeter:
    """Loudness of a sound track, frame by frame."""

    def __init__(self) -> None:
        self._powers: list[float] = []
        self._waiting: list[NDArray[np.float32]] = []
        self._rest = np.zeros(0, np.float32)
        self._kind = (0, 0, "")
        self._measures = True

    def push(self, frame: AudioFrame) -> None:
        """Take the next decoded frame; the first one that cannot be measured ends the measurement."""
        is_known = not frame.format.is_planar or frame.format.name in _PLANAR
        if not (
            0 < frame.sample_rate <= _MAX_RATE and frame.layout.nb_channels <= _MAX_CHANNELS and is_known
        ):
            self._measures = False
        if not self._measures:
            return
        kind = (frame.sample_rate, frame.layout.nb_channels, frame.format.name)
        if kind != self._kind or len(self._waiting) == _AT_ONCE:
            self._measure()
            self._kind = kind
        self._waiting.append(_scale_samples(frame))

    def _measure(self) -> None:
        """Measure the frames that wait, which are of one kind."""
        if not self._waiting:
            return
        samples = np.concatenate(self._waiting, axis=1)
        self._waiting.clear()
        power = np.einsum("cs,cs->s", samples, samples) / np.float32(len(samples))
        rest = np.concatenate([self._rest, power])
        size = max(1, round(self._kind[0] * WINDOW_S))
        num_windows = len(rest) // size
        if num_windows:
            self._powers += rest[: num_windows * size].reshape(num_windows, size).mean(axis=1).tolist()
        self._rest = rest[num_windows * size :]

    def take(self) -> Floats:
        """Return the loudness of each window, as `loudness_dbfs` does."""
        self._measure()
        powers = self._powers
        if not powers and len(self._rest):
            powers = [float(self._rest.mean())]
        floor = 10 ** (_FLOOR_DBFS / 10)
        return np.asarray(10 * np.log10(np.maximum(powers, floor)), np.float32).reshape(-1)


@charged("scores: sound")
def sound_scores(sample: ClipSample) -> dict[str, float]:
    """Return the scores of the sound track; none where it was not measured.

    ``has_audio`` is 1 or 0. ``silent_share`` is the share of silent time, 1 without a sound track; time of the clip
    that the track does not fill is silent.
    ``loudness_dbfs`` is the root mean square of the whole track, dBFS.
    """
    levels_dbfs = sample.audio_dbfs
    if levels_dbfs is None:
        return {}
    if not len(levels_dbfs):
        return {"has_audio": 0.0, "silent_share": 1.0, "loudness_dbfs": _FLOOR_DBFS}
    windows = int(sample.duration_s / WINDOW_S + 1e-6)
    lacking = windows - len(levels_dbfs)
    if lacking <= _MAX_LACKING:
        lacking = 0
    silent = int((levels_dbfs < SILENCE_DBFS).sum()) + lacking
    power = float(np.mean(10 ** (levels_dbfs.astype(np.float64) / 10)))
    return {
        "has_audio": 1.0,
        "silent_share": silent / (len(levels_dbfs) + lacking),
        "loudness_dbfs": 10 * float(np.log10(power)),
    }


def _scale_samples(frame: AudioFrame) -> NDArray[np.float32]:
    """Return the samples of each channel, [channels, samples]; 1 is full scale."""
    samples = _read_samples(frame)
    if samples.dtype == np.uint8:
        scaled = (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    elif samples.dtype.kind == "i":
        scaled = samples.astype(np.float32) / np.float32(2 ** (8 * samples.itemsize - 1))
    else:
        scaled = samples.astype(np.float32)
    return scaled if frame.format.is_planar else scaled.reshape(-1, frame.layout.nb_channels).T


def _read_samples(frame: AudioFrame) -> NDArray[Any]:
    """Return the samples of a frame as they are: [channels, samples] in planes, else [1, channels x samples].

    PyAV 18 counts nine planes where there are eight, and `to_ndarray` ends the process (SIGSEGV).
    """
    count = frame.layout.nb_channels
    if not frame.format.is_planar or count < _MISCOUNTED:
        samples: NDArray[Any] = frame.to_ndarray()
        return samples
    dtype = _PLANAR[frame.format.name]
    return np.stack(
        [np.frombuffer(memoryview(plane), dtype)[: frame.samples] for plane in frame.planes[:count]]
    )
