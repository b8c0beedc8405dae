"""Tone mapping of HDR pictures (PQ, HLG; BT.2020) to BT.709 SDR as a lookup table for libavfilter."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

PQ, HLG = 16, 18  # transfer characteristics in ITU-T H.273

_LUT_SIZE = 33
_SDR_WHITE_NITS = 203.0  # ITU-R BT.2408: HDR reference white
_SOURCE_PEAK_NITS = 1000.0
_DISPLAY_GAMMA = 2.4  # ITU-R BT.1886

# ITU-R BT.2087, linear light.
_BT2020_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
)


@cache
def cube(transfer: int) -> str:
    """A ``.cube`` file from full-range BT.2020 RGB with ``transfer`` (PQ or HLG) to BT.709 SDR."""
    axis = np.linspace(0.0, 1.0, _LUT_SIZE)
    blue, green, red = np.meshgrid(axis, axis, axis, indexing="ij")  # red runs fastest in a .cube file
    rgb = np.stack([red, green, blue], axis=-1).reshape(-1, 3)
    mapped = tone_map(rgb, transfer)
    lines = "\n".join(f"{r:.6f} {g:.6f} {b:.6f}" for r, g, b in mapped)
    return f"LUT_3D_SIZE {_LUT_SIZE}\n{lines}\n"


def tone_map(rgb: NDArray[np.float64], transfer: int) -> NDArray[np.float64]:
    """HDR signal values [..., 3] in [0, 1] to SDR signal values [..., 3] in [0, 1].

    The brightest channel goes through the EETF of ITU-R BT.2390 (5.4.1) towards SDR white, the others keep
    their ratio to it, so that hues stay.
    """
    nits = _pq_to_nits(rgb) if transfer == PQ else _hlg_to_nits(rgb)
    brightest = np.maximum(nits.max(axis=-1, keepdims=True), 1e-6)
    ratio = _eetf(brightest) / brightest
    linear = (nits * ratio / _SDR_WHITE_NITS) @ _BT2020_TO_BT709.T
    signal: NDArray[np.float64] = np.clip(linear, 0.0, 1.0) ** (1 / _DISPLAY_GAMMA)
    return signal


def _eetf(nits: NDArray[np.float64]) -> NDArray[np.float64]:
    source_peak = _nits_to_pq(np.array(_SOURCE_PEAK_NITS))
    e = np.minimum(_nits_to_pq(nits) / source_peak, 1.0)
    peak = _nits_to_pq(np.array(_SDR_WHITE_NITS)) / source_peak
    knee = 1.5 * peak - 0.5
    t = np.clip((e - knee) / (1 - knee), 0.0, 1.0)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * peak
    )
    return _pq_to_nits(np.where(e < knee, e, spline) * source_peak)


# SMPTE ST 2084.
_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32


def _pq_to_nits(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    power = np.clip(signal, 0.0, 1.0) ** (1 / _M2)
    nits: NDArray[np.float64] = 10000 * (np.maximum(power - _C1, 0) / (_C2 - _C3 * power)) ** (1 / _M1)
    return nits


def _nits_to_pq(nits: NDArray[np.float64]) -> NDArray[np.float64]:
    power = (np.maximum(nits, 0.0) / 10000) ** _M1
    signal: NDArray[np.float64] = ((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2
    return signal


def _hlg_to_nits(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """ITU-R BT.2100 HLG at its nominal 1000 nit display (system gamma 1.2)."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    luminance = scene @ np.array([0.2627, 0.6780, 0.0593])
    nits: NDArray[np.float64] = 1000 * scene * np.maximum(luminance, 1e-9)[..., None] ** 0.2
    return nits
