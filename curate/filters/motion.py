"""How much moves in a clip, in picture diagonals per second, whatever its codec."""

import numpy as np

from curate.filters.flow import flow
from curate.filters.sample import ClipSample

CODEC, FLOW, VECTORS_MISSING = 0.0, 1.0, 2.0
"""Values of ``motion_source``."""


def motion_scores(sample: ClipSample) -> dict[str, float]:
    """Motion of everything, and of things less that of the camera; both in picture diagonals per second.

    ``motion_source`` says where it comes from: 0, the codec's vectors; 1, the pictures, for codecs without;
    2, nowhere: the codec has vectors and gave none, which is an error, and there is no ``motion``.
    """
    if sample.vectors_missing:
        return {"motion_source": VECTORS_MISSING}
    if sample.motion is not None and np.isfinite(sample.motion).any():
        per_second = len(sample.motion) / sample.duration_s
        found = {"motion": sample.motion, "motion_local": sample.motion_local}
        means = {
            name: float(np.nanmean(values, dtype=np.float64)) * per_second
            for name, values in found.items()
            if values is not None and np.isfinite(values).any()
        }
        return {**means, "motion_source": CODEC}
    if len(sample.pictures) < 2:
        return {"motion": 0.0, "motion_local": 0.0, "motion_source": FLOW}
    seen = flow(sample.grey)
    seconds = float(sample.times_s[-1] - sample.times_s[0])
    return {
        "motion": float(seen.motion.sum(dtype=np.float64)) / seconds,
        "motion_local": float(seen.motion_local.sum(dtype=np.float64)) / seconds,
        "motion_source": FLOW,
    }
