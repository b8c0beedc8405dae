"""Plan indexes of samples that lie nowhere."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loader.dataset.plan_index import PlanIndex


def plan_index(
    frames: ArrayLike, height: ArrayLike, width: ArrayLike, text_tokens: ArrayLike = 0, fps: ArrayLike = 24
) -> PlanIndex:
    """One sample for each of ``frames``; the other values broadcast."""
    count = len(np.asarray(frames))

    def column(values: ArrayLike, dtype: type[Any]) -> Any:
        return np.broadcast_to(np.asarray(values, dtype), count)

    return PlanIndex(
        frames=column(frames, np.int32),
        fps=column(fps, np.float32),
        height=column(height, np.uint16),
        width=column(width, np.uint16),
        text_tokens=column(text_tokens, np.int32),
        shard=column(0, np.int32),
        offset=column(0, np.int64),
        size=column(0, np.uint32),
    )
