"""Motion scores of a clip, in picture diagonals per second, for any codec."""

import numpy as np

from reelweave.curate.filters.flow import flow
from reelweave.curate.filters.sample import ClipSample
from reelweave.loader.base.operations import charged

CODEC, FLOW, VECTORS_MISSING = 0.0, 1.0, 2.0
"""Values of ``motion_source``."""


@charged("scores: motion")
def motion_scores(sample: ClipSample) -> dict[str, float]:
    """Return the mean motion, and the mean motion relative to the camera, in picture diagonals per second.

    ``motion_source`` is 0 for the codec's motion vectors and 1 for phase correlation of pictures, used for
    codecs without vectors. It is 2, without ``motion``, for an error: the codec has vectors, but exported
    none.
    """
    if sample.vectors_missing:
        return {"motion_source": VECTORS_MISSING}
    if sample.motion is not None and np.isfinite(sample.motion).any():
        per_second = len(sample.motion) / sample.duration_s
        measured = {"motion": sample.motion, "motion_local": sample.motion_local}
        means = {
            name: float(np.nanmean(values, dtype=np.float64)) * per_second
            for name, values in measured.items()
            if values is not None and np.isfinite(values).any()
        }
        return {**means, "motion_source": CODEC}
    if len(sample.pictures) < 2:
        return {"motion": 0.0, "motion_local": 0.0, "motion_source": FLOW}
    picture_flow = flow(sample.grey)
    seconds = float(sample.times_s[-1] - sample.times_s[0])
    return {
        "motion": float(picture_flow.motion.sum(dtype=np.float64)) / seconds,
        "motion_local": float(picture_flow.motion_local.sum(dtype=np.float64)) / seconds,
        "motion_source": FLOW,
    }
