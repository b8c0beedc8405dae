"""Plan indexes of samples that lie nowhere."""

import numpy as np
from numpy.typing import ArrayLike

from reelweave.loader.dataset.plan_index import DTYPES, PLANNED, PlanIndex


def plan_index(
    frames: ArrayLike, height: ArrayLike, width: ArrayLike, text_tokens: ArrayLike = 0, fps: ArrayLike = 24
) -> PlanIndex:
    """One sample for each of ``frames``; the other values broadcast."""
    given = {"frames": frames, "height": height, "width": width, "text_tokens": text_tokens, "fps": fps}
    count = len(np.asarray(frames))
    return PlanIndex(
        **{name: np.broadcast_to(np.asarray(given.get(name, 0), DTYPES[name]), count) for name in PLANNED}
    )
