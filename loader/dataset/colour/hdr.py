"""Formulas of tone mapping from HDR (PQ, HLG; BT.2020) to BT.709 SDR."""

import numpy as np
from numpy.typing import NDArray

PQ, HLG = 16, 18  # transfer characteristics in ITU-T H.273

SDR_WHITE_NITS = 203.0  # ITU-R BT.2408: HDR reference white
_SOURCE_PEAK_NITS = 1000.0
DISPLAY_GAMMA = 2.4  # ITU-R BT.1886

# ITU-R BT.2087, linear light.
BT2020_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
)


def tone_map(rgb: NDArray[np.float64], transfer: int) -> NDArray[np.float64]:
    """Map HDR signal values [..., 3] in [0, 1] to SDR signal values [..., 3] in [0, 1].

    The brightest channel goes through the EETF of ITU-R BT.2390 (5.4.1) towards SDR white. The other channels
    keep their ratio to it, which preserves hues.
    """
    nits = pq_to_nits(rgb) if transfer == PQ else _hlg_to_nits(rgb)
    brightest = np.maximum(nits.max(axis=-1, keepdims=True), 1e-6)
    ratio = eetf(brightest) / brightest
    linear = (nits * ratio / SDR_WHITE_NITS) @ BT2020_TO_BT709.T
    signal: NDArray[np.float64] = np.clip(linear, 0.0, 1.0) ** (1 / DISPLAY_GAMMA)
    return signal


def eetf(nits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply the EETF of ITU-R BT.2390 (5.4.1) from 1,000 nits to SDR white; input and output in nits."""
    source_peak = _nits_to_pq(np.array(_SOURCE_PEAK_NITS))
    e = np.minimum(_nits_to_pq(nits) / source_peak, 1.0)
    peak = _nits_to_pq(np.array(SDR_WHITE_NITS)) / source_peak
    knee = 1.5 * peak - 0.5
    t = np.clip((e - knee) / (1 - knee), 0.0, 1.0)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee + (t**3 - 2 * t**2 + t) * (1 - knee) + (-2 * t**3 + 3 * t**2) * peak
    )
    return pq_to_nits(np.where(e < knee, e, spline) * source_peak)


# SMPTE ST 2084.
_M1, _M2 = 2610 / 16384, 2523 / 4096 * 128
_C1, _C2, _C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32


def pq_to_nits(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply the EOTF of SMPTE ST 2084 to a signal in [0, 1]; output in nits."""
    power = np.clip(signal, 0.0, 1.0) ** (1 / _M2)
    nits: NDArray[np.float64] = 10000 * (np.maximum(power - _C1, 0) / (_C2 - _C3 * power)) ** (1 / _M1)
    return nits


def _nits_to_pq(nits: NDArray[np.float64]) -> NDArray[np.float64]:
    power = (np.maximum(nits, 0.0) / 10000) ** _M1
    signal: NDArray[np.float64] = ((_C1 + _C2 * power) / (1 + _C3 * power)) ** _M2
    return signal


def hlg_to_scene(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scene light of ITU-R BT.2100 HLG, 0 to 1."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene: NDArray[np.float64] = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    return scene


def _hlg_to_nits(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply ITU-R BT.2100 HLG with its nominal 1000 nit display (system gamma 1.2); output in nits."""
    scene = hlg_to_scene(signal)
    luminance = scene @ np.array([0.2627, 0.6780, 0.0593])
    nits: NDArray[np.float64] = 1000 * scene * np.maximum(luminance, 1e-9)[..., None] ** 0.2
    return nits
