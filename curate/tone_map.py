"""Tone mapping of whole HDR pictures: what each YCbCr sample becomes is computed once and then looked up.

Chroma is mapped where it lies, with the mean of the four luma samples around it, so that nothing is resampled. Tables
are filled with what the footage shows: a film holds a few thousand of all pairs of Cb and Cr.
"""

from functools import cache

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from curate import hdr

FORMAT = "yuv420p10le"
"""What is mapped, in limited range with the matrix of BT.2020."""

_BT709 = 1  # of primaries, transfer and matrix in ITU-T H.273
_LIMITED_RANGE = 1
_BITS = 10
_PAIR_STEP, _LUMA_PAIR_STEP = 2, 4  # codes of Cb and Cr that share an entry
_MEAN_STEP = 8  # codes of mean luma that share an entry of chroma
_CODES = 1 << _BITS
_PAIRS = _CODES // _PAIR_STEP
_LUMA_PAIRS = _CODES // _LUMA_PAIR_STEP
_MEANS = _CODES // _MEAN_STEP
_BLOCK_PIXELS = 1 << 16  # that stay in the cache
_FILLED_AT_ONCE = 1 << 17
_STEPS = 1 << 14  # of curves
_PEAK_NITS = 10_000.0

_KR, _KB = 0.2627, 0.0593  # ITU-R BT.2020
_KR_709, _KB_709 = 0.2126, 0.0722
_LUMA_BT2020 = (_KR, 1 - _KR - _KB, _KB)

Floats = NDArray[np.float32]


@cache
def tone_mapper(transfer: int) -> "ToneMapper":
    """The mapper of a transfer (`hdr.PQ` or `hdr.HLG`), one per process."""
    return ToneMapper(transfer)


class ToneMapper:
    """Maps frames to 8-bit SDR of BT.709; up to 140 MB of memory where a film shows every colour, mostly 10.

    Args:
        transfer: `hdr.PQ` or `hdr.HLG`.
    """

    def __init__(self, transfer: int) -> None:
        self._curves = _Curves(transfer)
        # Memory of entries that are never filled is never taken. No sample is 0 in limited range: that is no entry.
        self._luma = np.zeros((_LUMA_PAIRS**2, _CODES), np.uint8)
        self._chroma = np.zeros((_PAIRS**2, _MEANS, 2), np.uint8)

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """The mapped picture of a frame of `FORMAT`, with tags, without side data."""
        y, u, v = (np.minimum(plane, _CODES - 1) for plane in _planes(frame, "<u2"))
        height, width = y.shape
        rows, columns = u.shape
        if (height, width) != (2 * rows, 2 * columns):
            y = np.pad(y, ((0, 2 * rows - height), (0, 2 * columns - width)), mode="edge")
        y = y.reshape(rows, 2, 2 * columns)
        luma = np.empty((rows, 2, 2 * columns), np.uint8)
        chroma = np.empty((rows, columns), np.uint16)
        at_once = max(1, _BLOCK_PIXELS // (2 * columns))
        for top in range(0, rows, at_once):
            part = slice(top, top + at_once)
            self._map(y[part], u[part], v[part], luma[part], chroma[part])
        mapped = VideoFrame(width, height, "yuv420p")
        for plane, of in zip(
            _planes(mapped, np.uint8),
            (luma.reshape(2 * rows, -1)[:height, :width], *np.moveaxis(_pairs(chroma), 2, 0)),
            strict=True,
        ):
            plane[:] = of
        mapped.pts, mapped.time_base = frame.pts, frame.time_base
        mapped.color_primaries = mapped.color_trc = mapped.colorspace = _BT709
        mapped.color_range = _LIMITED_RANGE
        return mapped

    def _map(
        self,
        y: NDArray[np.uint16],
        u: NDArray[np.uint16],
        v: NDArray[np.uint16],
        luma: NDArray[np.uint8],
        chroma: NDArray[np.uint16],
    ) -> None:
        """Write the mapped luma [rows, 2, 2 * columns] and pairs of chroma [rows, columns] of some rows."""
        pairs = (u // _PAIR_STEP).astype(np.int64) * _PAIRS + v // _PAIR_STEP
        sums = y[:, 0] + y[:, 1]
        means = (sums[:, ::2] + sums[:, 1::2]) // (4 * _MEAN_STEP)
        entries = pairs * _MEANS + means
        table = self._chroma.view(np.uint16).reshape(-1)
        np.take(table, entries, out=chroma, mode="wrap")  # "wrap" needs no check: all entries are inside
        if not chroma.all():
            self._fill(np.unique(pairs[chroma == 0]))
            np.take(table, entries, out=chroma, mode="wrap")
        starts = (u // _LUMA_PAIR_STEP).astype(np.uint32) * (_LUMA_PAIRS * _CODES)
        starts += (v // _LUMA_PAIR_STEP) * np.uint32(_CODES)
        places = y.astype(np.int64)
        places += starts.repeat(2, axis=1)[:, None]
        np.take(self._luma.reshape(-1), places, out=luma, mode="wrap")

    def _fill(self, pairs: NDArray[np.int64]) -> None:
        """Compute the entries of these pairs of chroma, and of luma for pairs beside them."""
        u, v = pairs // _PAIRS, pairs % _PAIRS
        means = np.arange(_MEANS) * _MEAN_STEP + (_MEAN_STEP - 1) / 2
        for some in _some(len(pairs), _MEANS):
            middles = [each[some, None] * _PAIR_STEP + (_PAIR_STEP - 1) / 2 for each in (u, v)]
            _, *mapped = self._curves.mapped(means, *middles)
            self._chroma[pairs[some]] = np.stack(mapped, axis=-1)
        step = _LUMA_PAIR_STEP // _PAIR_STEP
        wanted = np.unique(u // step * _LUMA_PAIRS + v // step)
        wanted = wanted[self._luma[wanted, 0] == 0]
        for some in _some(len(wanted), _CODES):
            middles = [
                each[some, None] * _LUMA_PAIR_STEP + (_LUMA_PAIR_STEP - 1) / 2
                for each in (wanted // _LUMA_PAIRS, wanted % _LUMA_PAIRS)
            ]
            self._luma[wanted[some]] = self._curves.mapped(np.arange(_CODES), *middles)[0]


class _Curves:
    """`hdr.tone_map` of YCbCr samples, by curves of one variable.

    Tables and plain float32 arithmetic give the same numbers on every processor; powers do not.
    """

    def __init__(self, transfer: int) -> None:
        steps = np.linspace(0.0, 1.0, _STEPS + 1)
        self._hlg = transfer == hdr.HLG
        light = hdr.hlg_to_scene(steps) * 1000 if self._hlg else hdr.pq_to_nits(steps)
        self._light = (light / _PEAK_NITS).astype(np.float32)
        # The other curves are steep at 0, and so are made over square roots.
        self._system = ((steps**2) ** 0.2).astype(np.float32)
        nits = np.maximum(steps**2 * _PEAK_NITS, 1e-6)
        self._gain = (hdr.eetf(nits) / nits * (_PEAK_NITS / hdr.SDR_WHITE_NITS)).astype(np.float32)
        self._signal = ((steps**2) ** (1 / hdr.DISPLAY_GAMMA)).astype(np.float32)
        self._to_709 = hdr.BT2020_TO_BT709.astype(np.float32)

    def mapped(self, y: NDArray, u: NDArray, v: NDArray) -> list[NDArray[np.uint8]]:  # type: ignore[type-arg]
        """8-bit Y, Cb and Cr of limited range, BT.709, of 10-bit codes of BT.2020 that broadcast."""
        luma = ((y - 64) / 876).astype(np.float32)
        blue = luma + ((u - 512) / 896 * (2 - 2 * _KB)).astype(np.float32)
        red = luma + ((v - 512) / 896 * (2 - 2 * _KR)).astype(np.float32)
        shares = [np.float32(share) for share in _LUMA_BT2020]
        green = (luma - shares[0] * red - shares[2] * blue) / shares[1]
        light = [_at(self._light, signal) for signal in (red, green, blue)]
        if self._hlg:
            scene = light[0] * shares[0] + light[1] * shares[1] + light[2] * shares[2]
            ootf = _at(self._system, np.sqrt(scene * np.float32(_PEAK_NITS / 1000)))
            light = [each * ootf for each in light]
        gain = _at(self._gain, np.sqrt(np.maximum(np.maximum(light[0], light[1]), light[2])))
        light = [each * gain for each in light]
        red, green, blue = (
            _at(
                self._signal,
                np.sqrt(np.maximum(row[0] * light[0] + row[1] * light[1] + row[2] * light[2], 0)),
            )
            for row in self._to_709
        )
        kr, kb = np.float32(_KR_709), np.float32(_KB_709)
        luma = kr * red + (1 - kr - kb) * green + kb * blue
        codes = (
            luma * 219 + 16,
            (blue - luma) * np.float32(224 / (2 - 2 * _KB_709)) + 128,
            (red - luma) * np.float32(224 / (2 - 2 * _KR_709)) + 128,
        )
        return [np.asarray(code + np.float32(0.5), np.uint8) for code in codes]


def _at(curve: Floats, of: Floats) -> Floats:
    """A curve at values, those outside of 0 to 1 brought inside."""
    places = (of.clip(0, 1) * np.float32(_STEPS) + np.float32(0.5)).astype(np.intp)
    return np.asarray(curve[places])


def _some(count: int, size: int) -> list[slice]:
    """Slices of ``count`` entries of ``size`` numbers that take little memory at a time."""
    step = max(1, _FILLED_AT_ONCE // size)
    return [slice(first, first + step) for first in range(0, count, step)]


def _planes(frame: VideoFrame, kind: object) -> list[NDArray]:  # type: ignore[type-arg]
    """The samples of each plane, [height, width], without what pads lines."""
    return [
        np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)[:, : plane.width]  # type: ignore[call-overload]
        for plane in frame.planes
    ]


def _pairs(chroma: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Cb and Cr of each entry, [rows, columns, 2]."""
    return chroma.view(np.uint8).reshape(*chroma.shape, 2)
