"""How loud a clip is, and for how much of its time it is silent."""

import io

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from curate.filters.sample import ClipSample, Floats

WINDOW_S = 0.1
SILENCE_DBFS = -60.0
"""A window that is softer is silent: the default of FFmpeg's ``silencedetect``."""

_FLOOR_DBFS = -120.0
_MAX_RATE = 384_000
_MAX_CHANNELS = 64


def levels(data: bytes) -> Floats:
    """Loudness of the sound track of an encoded clip, decoded once in one thread.

    Args:
        data: of a media file.

    Returns:
        float32 [windows]: root mean square of every 100 ms over all channels, decibels below full scale, at least
        -120; what decodes before the first error, if there is one; empty without a sound track.
    """
    powers: list[float] = []
    rest = np.zeros(0, np.float32)
    try:
        with io.BytesIO(data) as file, av.open(file, mode="r", metadata_errors="replace") as container:
            if not container.streams.audio:
                return np.zeros(0, np.float32)
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            for frame in container.decode(stream):
                if not 0 < frame.sample_rate <= _MAX_RATE or frame.layout.nb_channels > _MAX_CHANNELS:
                    break
                rest = np.concatenate([rest, _power(frame)])
                size = max(1, round(frame.sample_rate * WINDOW_S))
                whole = len(rest) // size
                powers += rest[: whole * size].reshape(whole, size).mean(axis=1).tolist()
                rest = rest[whole * size :]
    except (av.error.FFmpegError, OSError, ValueError):
        pass  # a broken sound track is as loud as what can be heard of it
    if not powers and len(rest):
        powers = [float(rest.mean())]
    floor = 10 ** (_FLOOR_DBFS / 10)
    return np.asarray(10 * np.log10(np.maximum(powers, floor)), np.float32).reshape(-1)


def sound_scores(sample: ClipSample) -> dict[str, float]:
    """Scores of the sound track; none where it was not measured.

    ``has_audio`` is 1 or 0; ``silent_share`` the share of the time that is silent, 1 without a sound track;
    ``loudness_dbfs`` the root mean square of the whole track, decibels below full scale.
    """
    found = sample.audio_dbfs
    if found is None:
        return {}
    if not len(found):
        return {"has_audio": 0.0, "silent_share": 1.0, "loudness_dbfs": _FLOOR_DBFS}
    power = float(np.mean(10 ** (found.astype(np.float64) / 10)))
    return {
        "has_audio": 1.0,
        "silent_share": float((found < SILENCE_DBFS).mean()),
        "loudness_dbfs": 10 * float(np.log10(power)),
    }


def _power(frame: AudioFrame) -> NDArray[np.float32]:
    """Mean square over the channels of each moment, [samples]; 1 is full scale."""
    samples = frame.to_ndarray()
    if samples.dtype == np.uint8:
        scaled = (samples.astype(np.float32) - np.float32(128)) / np.float32(128)
    elif samples.dtype.kind == "i":
        scaled = samples.astype(np.float32) / np.float32(2 ** (8 * samples.itemsize - 1))
    else:
        scaled = samples.astype(np.float32)
    if not frame.format.is_planar:
        scaled = scaled.reshape(-1, frame.layout.nb_channels).T
    power = np.einsum("cs,cs->s", scaled, scaled) / np.float32(len(scaled))
    return np.asarray(power, np.float32)
