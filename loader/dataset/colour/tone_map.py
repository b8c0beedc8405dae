"""Tone mapping of whole HDR pictures by lookup tables, whose entries are computed on first use.

Chroma is mapped at its own resolution, with the mean of the four luma samples around it, so that nothing is
resampled. Tables are filled on demand: a film holds a few thousand of all pairs of Cb and Cr.
"""

from threading import local
from typing import Any

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from reelweave.loader.dataset.colour import hdr
from reelweave.loader.dataset.colour.loops import map_picture
from reelweave.loader.dataset.colour.planes import lines_of

FORMAT = "yuv420p10le"
"""Input format of the mapping, limited range, BT.2020 matrix."""

_BT709 = 1  # code of BT.709 primaries, transfer and matrix in ITU-T H.273
_LIMITED_RANGE = 1
_BITS = 10
_PAIR_BITS = 1  # low bits of Cb and of Cr ignored for chroma
_GROUP_BITS = 2  # low bits of Cb and of Cr ignored for luma
_MEAN_BITS = 3  # low bits of the luma mean ignored for chroma
_COMPUTED_STEP = 4  # luma codes between computed entries; entries in between are interpolated
_CODES = 1 << _BITS
_PAIRS = _CODES >> _PAIR_BITS
_GROUPS = _CODES >> _GROUP_BITS
_MEANS = _CODES >> _MEAN_BITS
_FILLED_AT_ONCE = 128
_STEPS = 1 << 14  # resolution of curves
_PEAK_NITS = 10_000.0

_KR, _KB = 0.2627, 0.0593  # ITU-R BT.2020
_KR_709, _KB_709 = 0.2126, 0.0722
_LUMA_BT2020 = (_KR, 1 - _KR - _KB, _KB)

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
NumericArray = NDArray[np.int64] | NDArray[np.float64] | Floats


class _Mappers(local):
    """Mappers of one thread, by transfer function."""

    def __init__(self) -> None:
        self.made: dict[int, ToneMapper] = {}


_mappers = _Mappers()


def tone_mapper(transfer: int) -> "ToneMapper":
    """Return this thread's mapper of a transfer function (`hdr.PQ` or `hdr.HLG`)."""
    if transfer not in _mappers.made:
        _mappers.made[transfer] = ToneMapper(transfer)
    return _mappers.made[transfer]


class ToneMapper:
    """Mapper from HDR frames to 8-bit BT.709 SDR; takes 10 MB of memory for usual films, 140 MB with every colour.

    Args:
        transfer: `hdr.PQ` or `hdr.HLG`.
    """

    def __init__(self, transfer: int) -> None:
        self._curves = _Curves(transfer)
        # Unfilled entries take no physical memory. A 0 marks them, since no sample is 0 in limited range.
        self._luma = np.zeros((_GROUPS**2, _CODES), np.uint8)
        self._chroma = np.zeros((_PAIRS**2, _MEANS, 2), np.uint8)

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """Return the mapped picture of a frame in `FORMAT`, with tags, without side data."""
        mapped = VideoFrame(frame.width, frame.height, "yuv420p")
        deep, lines = _planes(frame, np.uint16), _planes(mapped, np.uint8)
        tables = self._luma.reshape(-1), self._chroma.reshape(-1, 2)
        size = frame.height, frame.width
        if not map_picture(size, deep, *tables, lines):
            _, u, v = (plane[:, : to.width] for plane, to in zip(deep, frame.planes, strict=True))
            empty = lines[1][:, : u.shape[1]] == 0
            groups = (u[empty] >> _GROUP_BITS).astype(np.intp) * _GROUPS + (v[empty] >> _GROUP_BITS)
            self._fill(np.unique(groups) % _GROUPS**2)
            map_picture(size, deep, *tables, lines)
        mapped.pts, mapped.time_base = frame.pts, frame.time_base
        mapped.color_primaries = mapped.color_trc = mapped.colorspace = _BT709
        mapped.color_range = _LIMITED_RANGE
        return mapped

    def _fill(self, groups: NDArray[np.int64]) -> None:
        """Compute the table entries of chroma groups, for luma and for the chroma pairs in them."""
        each = 1 << _GROUP_BITS - _PAIR_BITS
        within = np.arange(each)
        means = _middle(np.arange(_MEANS), _MEAN_BITS)[:, 0]
        computed = np.arange(0, _CODES + 1, _COMPUTED_STEP)
        between = np.arange(_COMPUTED_STEP, dtype=np.float32) / np.float32(_COMPUTED_STEP)
        for first in range(0, len(groups), _FILLED_AT_ONCE):
            some = groups[first : first + _FILLED_AT_ONCE]
            u, v = some // _GROUPS, some % _GROUPS
            luma, *_ = self._curves.map_codes(computed, _middle(u, _GROUP_BITS), _middle(v, _GROUP_BITS))
            steps = (luma[:, 1:] - luma[:, :-1])[..., None] * between
            self._luma[some] = _round_codes(luma[:, :-1, None] + steps).reshape(len(some), _CODES)
            u_of = (u[:, None, None] * each + within[:, None] + 0 * within).ravel()
            v_of = (v[:, None, None] * each + within + 0 * within[:, None]).ravel()
            _, *mapped = self._curves.map_codes(means, _middle(u_of, _PAIR_BITS), _middle(v_of, _PAIR_BITS))
            self._chroma[u_of * _PAIRS + v_of] = _round_codes(np.stack(mapped, axis=-1))


class _Curves:
    """`hdr.tone_map` of YCbCr samples, by curves of one variable.

    Tables and plain float32 arithmetic give the same numbers on every processor; power functions do not.
    """

    def __init__(self, transfer: int) -> None:
        steps = np.linspace(0.0, 1.0, _STEPS + 1)
        self._hlg = transfer == hdr.HLG
        light = hdr.hlg_to_scene(steps) * 1000 if self._hlg else hdr.pq_to_nits(steps)
        self._light = (light / _PEAK_NITS).astype(np.float32)
        # The other curves are steep at 0, so they are tabulated over square roots.
        self._system = ((steps**2) ** 0.2).astype(np.float32)
        nits = np.maximum(steps**2 * _PEAK_NITS, 1e-6)
        self._gain = (hdr.eetf(nits) / nits * (_PEAK_NITS / hdr.SDR_WHITE_NITS)).astype(np.float32)
        self._signal = ((steps**2) ** (1 / hdr.DISPLAY_GAMMA)).astype(np.float32)
        self._to_709 = hdr.BT2020_TO_BT709.astype(np.float32)

    def map_codes(self, y: NumericArray, u: NumericArray, v: NumericArray) -> tuple[Floats, Floats, Floats]:
        """Convert 10-bit BT.2020 codes (broadcastable) to 8-bit BT.709 codes of Y, Cb and Cr, limited range."""
        # Codes to the signals of red, green and blue (BT.2020).
        luma = ((y - 64) / 876).astype(np.float32)
        blue = luma + ((u - 512) / 896 * (2 - 2 * _KB)).astype(np.float32)
        red = luma + ((v - 512) / 896 * (2 - 2 * _KR)).astype(np.float32)
        shares = [np.float32(share) for share in _LUMA_BT2020]
        green = (luma - shares[0] * red - shares[2] * blue) / shares[1]
        # Signals to light; HLG's scene light becomes that of a display.
        light = [_at(self._light, signal) for signal in (red, green, blue)]
        if self._hlg:
            scene = light[0] * shares[0] + light[1] * shares[1] + light[2] * shares[2]
            ootf = _at(self._system, np.sqrt(scene * np.float32(_PEAK_NITS / 1000)))
            light = [each * ootf for each in light]
        # One gain for all three keeps the hue: that of the strongest.
        gain = _at(self._gain, np.sqrt(np.maximum(np.maximum(light[0], light[1]), light[2])))
        light = [each * gain for each in light]
        # Light to BT.709 signals, then to codes.
        red, green, blue = (
            _at(
                self._signal,
                np.sqrt(np.maximum(row[0] * light[0] + row[1] * light[1] + row[2] * light[2], 0)),
            )
            for row in self._to_709
        )
        kr, kb = np.float32(_KR_709), np.float32(_KB_709)
        luma = kr * red + (1 - kr - kb) * green + kb * blue
        return (
            luma * 219 + 16,
            (blue - luma) * np.float32(224 / (2 - 2 * _KB_709)) + 128,
            (red - luma) * np.float32(224 / (2 - 2 * _KR_709)) + 128,
        )


def _at(curve: Floats, of: Floats) -> Floats:
    """Look up a curve at values, clipped to 0 to 1."""
    indices = (of.clip(0, 1) * np.float32(_STEPS) + np.float32(0.5)).astype(np.intp)
    return np.asarray(curve[indices])


def _middle(indices: NDArray[np.int64], bits: int) -> Floats:
    """Return the mean code of each group of codes that share all but the low bits, [n, 1]."""
    return ((indices << bits) + ((1 << bits) - 1) / 2).astype(np.float32)[:, None]


def _round_codes(codes: Floats) -> Bytes:
    return np.asarray(codes + np.float32(0.5), np.uint8)


def _planes(frame: VideoFrame, kind: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the lines of Y, Cb and Cr."""
    y, u, v = frame.planes
    return lines_of(y, kind), lines_of(u, kind), lines_of(v, kind)
