"""Frame rate of a published model: the default of its sampling of frames, and words where another is asked for."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.loader.buckets.frame_sampling import FrameSampling
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import File, resolve
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.published.frame_rate import frame_rate, same_rate

if TYPE_CHECKING:
    from reelweave.loader.dataset.plan_index import PlanIndex


def resolve_run(file: File, overrides: Sequence[str]) -> TrainRunConfig:
    """Return the configuration of a training run as `resolve` does, with the frame rate of its published model.

    Where ``stream.buckets.sampling`` is not given, clips are sampled at the rate that the model was trained at.

    Raises:
        UsageError: as `resolve`, or the rate is needed and the published model cannot be read.
    """
    config = resolve(TrainRunConfig, file, overrides)
    buckets = config.stream.buckets
    if "sampling" in buckets.model_fields_set:
        return config
    try:
        rate = frame_rate(config.train.model)
    except UsageError as error:
        raise UsageError(
            f"stream.buckets.sampling is not set, and its default is the frame rate of the model: {error}"
        ) from error
    if rate is None:
        return config
    sampling = FrameSampling(mode="fps", fps=rate)
    stream = config.stream.model_copy(update={"buckets": buckets.model_copy(update={"sampling": sampling})})
    return config.model_copy(update={"stream": stream})


def other_rates(config: TrainRunConfig, index: "PlanIndex") -> Iterator[str]:
    """Yield a sentence for each frame rate of a run that is not the one its published model was trained at.

    Args:
        config: configuration of the run.
        index: samples of its stream.
    """
    model = config.train.model
    rate = frame_rate(model)
    if rate is None or not isinstance(model, DiffusersConfig):
        return
    trained = f"{model.name} was trained at {rate:g}"
    sampling = config.stream.buckets.sampling
    moving_N = index.frames[:] > 1
    clip_N = np.asarray(index.fps[:], np.float64)[moving_N]
    seen_N = clip_N / sampling.step(clip_N)
    other_N = np.abs(seen_N - rate) > 0.01 * rate
    if other_N.any():
        yield (
            f"stream.buckets.sampling has mode {sampling.mode}: {int(other_N.sum()):,} of {len(seen_N):,} clips play at"
            f" {_span(seen_N[other_N])} frames per second, and {trained}; leave sampling out for that rate"
        )
    fewer = int((clip_N < 0.99 * (sampling.fps or 0)).sum())
    if fewer:
        yield (
            f"stream.buckets.sampling: {fewer:,} of {len(seen_N):,} clips have fewer than {sampling.fps:g} frames per"
            " second, so that frames repeat in them"
        )
    shown = config.validation and config.validation.fps
    if shown and not same_rate(shown, rate):
        yield f"validation.fps is {shown}, and {trained}"


def _span(values_N: Floats) -> str:
    lowest, highest = float(values_N.min()), float(values_N.max())
    return f"{lowest:.4g}" if same_rate(lowest, highest) else f"{lowest:.4g} to {highest:.4g}"
