"""Sound on a clip's own time axis, encoded as AAC."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from numpy.typing import NDArray

from reelweave.curate.cut.mp4 import Mp4

# ISO/IEC 14496-3, table 1.18, without 96 and 88.2 kHz, which are beyond hearing.
RATES = (64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
_OTHER_RATE = 48000
_SLACK_S = Fraction(1, 50)  # maximum gap between frames of one piece; ticks may be coarse
_COUNTED_SLACK_S = Fraction(1, 4)  # the same where stamps count another rate than the sound has
_STEP_S = Fraction(3, 1000)  # offset above which a piece ends, if the next frames have it too
_AHEAD, _LEAST_LASTING = 16, 8  # frames that tell it, and the least number of them
_OTHER_COUNT = 0.01  # relative difference of durations that is no rounding
_COUNTED = 1.25  # ratio of durations that shows it
_FRAME = 1024
_MIXED = {"rematrix_maxval": "1.0"}  # shares of all channels add up to 1, so that a mix never overflows
_BITEXACT = 1 << 23  # AV_CODEC_FLAG_BITEXACT: no version of the encoder in its stream


@dataclass(frozen=True)
class Track:
    """Samples of a clip that are to be encoded.

    Attributes:
        samples: float32 [channels, samples] in [-1, 1], one or two channels.
        rate: Samples per second.
        mixed_from: Number of channels of which it is a mix; 0 where it is none.
    """

    samples: NDArray[np.float32]
    rate: int
    mixed_from: int = 0


def samples(frames: Iterable[AudioFrame], start_s: Fraction, duration_s: Fraction) -> Track | None:
    """Place decoded sound on the time axis of a clip: mono, or mixed down to stereo; gaps are silent.

    Where their rate or channels change, as in recordings of TV, those of the clip's first frame go on.

    Args:
        frames: Decoded frames, in order.
        start_s: Start of the clip on the frames' clock.
        duration_s: Duration of the clip.

    Returns:
        A track exactly as long as the clip; None when no frame lies inside it.
    """
    rate, layout = 0, "mono"
    track = np.zeros((0, 0), np.float32)
    resampler: AudioResampler | None = None
    at = 0
    heard = False
    mixed_from = 0

    def lay(pieces: Iterable[AudioFrame]) -> None:
        nonlocal at, heard
        for piece in pieces:
            block = piece.to_ndarray()
            first, last = max(at, 0), min(at + block.shape[1], track.shape[1])
            if first < last:
                track[:, first:last] = block[:, first - at : last - at]
                heard = True
            at += block.shape[1]

    # Rate and channels are those of the first frame; a new resampler begins where the form changes or time jumps.
    for frame, first, begin_s in _with_begins(frames, start_s):
        if not rate:
            rate = first.sample_rate if first.sample_rate in RATES else _OTHER_RATE
            layout = "mono" if first.layout.nb_channels == 1 else "stereo"
            track = np.zeros((1 if layout == "mono" else 2, round(duration_s * rate)), np.float32)
        if begin_s is not None or resampler is None:
            if resampler is not None:
                lay(resampler.resample(None))
            is_mix = frame.layout.nb_channels > len(track)
            mixed_from = max(mixed_from, frame.layout.nb_channels) if is_mix else mixed_from
            resampler = AudioResampler("fltp", layout, rate, options=_MIXED if is_mix else None)
            at = round((begin_s or 0) * rate)
        frame.pts = None
        lay(resampler.resample(frame))
    if resampler is not None:
        lay(resampler.resample(None))
    return Track(track, rate, mixed_from) if heard else None


def _slack_s(frame: AudioFrame) -> Fraction:
    """Return the maximum gap before a frame; FFmpeg stamps AAC by the rate of the header, until the next PES packet."""
    return _SLACK_S if 1 / _COUNTED < _counted(frame) < _COUNTED else _COUNTED_SLACK_S


def _counted(frame: AudioFrame) -> float:
    """Return the duration that a frame states, as a multiple of that of its samples; 1 where it states none."""
    if not frame.duration or frame.time_base is None:
        return 1.0
    return float(frame.duration * frame.time_base * frame.sample_rate / max(1, frame.samples))


def _with_begins(
    frames: Iterable[AudioFrame], start_s: Fraction
) -> Iterator[tuple[AudioFrame, AudioFrame, Fraction | None]]:
    """Yield every frame, beside the first one that ends within the clip, and its time where a piece begins with it.

    Frames of a piece follow one another, whatever small jitter their stamps have. Frames before the clip only lead in.
    """
    form: tuple[object, ...] = ()
    expected_s = Fraction(0)
    ahead: deque[tuple[AudioFrame, AudioFrame]] = deque()
    pairs = _with_first(frames, start_s)
    while True:
        ahead.extend(islice(pairs, _AHEAD - len(ahead)))
        if not ahead:
            return
        frame, first = ahead[0]
        following = [each for each, _ in ahead]
        stamped_s = _stamped_s(frame, start_s)
        begin_s = None
        if stamped_s is None:
            begin_s = None if form == _form(frame) else expected_s
        elif form != _form(frame) or abs(stamped_s - expected_s) > _slack_s(frame):
            begin_s = stamped_s + _lasting_s(following, stamped_s, start_s)
        elif abs(stamped_s - expected_s) > _STEP_S and (off_s := _lasting_s(following, expected_s, start_s)):
            begin_s = expected_s + off_s
        ahead.popleft()
        form = _form(frame)
        expected_s = (expected_s if begin_s is None else begin_s) + Fraction(frame.samples, frame.sample_rate)
        yield frame, first, begin_s


def _form(frame: AudioFrame) -> tuple[object, ...]:
    return frame.sample_rate, frame.layout.name, frame.format.name


def _stamped_s(frame: AudioFrame, start_s: Fraction) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base - start_s


def _with_first(frames: Iterable[AudioFrame], start_s: Fraction) -> Iterator[tuple[AudioFrame, AudioFrame]]:
    """Yield every frame, beside the first one that ends within the clip; those before it only lead in."""
    before: list[AudioFrame] = []
    frames = iter(frames)
    for frame in frames:
        before.append(frame)
        if frame.pts is None or frame.time_base is None:
            break
        if frame.pts * frame.time_base + Fraction(frame.samples, frame.sample_rate) > start_s:
            break
    yield from ((frame, before[-1]) for frame in before)
    yield from ((frame, frame) for frame in frames)


def _lasting_s(frames: Iterable[AudioFrame], begin_s: Fraction, start_s: Fraction) -> Fraction:
    """Return how much later than expected the next frames all lie by their stamps; 0 where these only jitter.

    Where stamps count another rate than the sound has, the last ones before a true one are furthest from it.

    Args:
        frames: Next frames.
        begin_s: Time at which the first of them is expected.
        start_s: Start of the clip on the frames' clock.
    """
    offs_s: list[Fraction] = []
    form: tuple[object, ...] = ()
    counted = 1.0
    for frame in frames:
        stamped_s = _stamped_s(frame, start_s)
        if stamped_s is None or abs(stamped_s - begin_s) > _slack_s(frame) or form not in ((), _form(frame)):
            break
        form, counted = _form(frame), _counted(frame)
        offs_s.append(stamped_s - begin_s)
        begin_s += Fraction(frame.samples, frame.sample_rate)
    if len(offs_s) < _LEAST_LASTING:
        return Fraction(0)
    least_s, most_s = min(offs_s), max(offs_s)
    if abs(counted - 1) > _OTHER_COUNT:
        off_s = most_s if counted < 1 else least_s
    else:
        off_s = least_s if least_s > 0 else min(most_s, Fraction(0))
    return off_s if abs(off_s) > _STEP_S else Fraction(0)


def encode(track: Track, bitrate_kbps: int) -> bytes:
    """Encode an MP4 file with one AAC stream that begins at 0; an edit list skips the encoder delay.

    Args:
        track: Sound with one or two channels.
        bitrate_kbps: Bit rate of the stream.
    """
    file = Mp4()
    stream = file.container.add_stream("aac", rate=track.rate)
    assert isinstance(stream, AudioStream)
    layout = "mono" if len(track.samples) == 1 else "stereo"
    context = stream.codec_context
    context.layout, context.format = layout, "fltp"
    context.bit_rate = bitrate_kbps * 1000
    context.thread_count = 1
    context.flags |= _BITEXACT
    for first in range(0, track.samples.shape[1], _FRAME):
        block = np.ascontiguousarray(track.samples[:, first : first + _FRAME])
        frame = AudioFrame.from_ndarray(block, "fltp", layout)
        frame.sample_rate, frame.pts, frame.time_base = track.rate, first, Fraction(1, track.rate)
        file.container.mux(stream.encode(frame))
    file.container.mux(stream.encode(None))
    return file.close()
