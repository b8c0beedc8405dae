"""Frames per second of sampled files."""

from reelweave.pipelines.terminal.console import stderr
from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.models.published.frame_rate import file_fps, frame_rate, same_rate


def fps_of_files(
    requested: int | None, model: ModelConfig | DiffusersConfig, run_fps: float | None, says: bool
) -> int:
    """Return the frames per second of sampled files: what was asked for, or what the model was trained at.

    Args:
        requested: option of the command; None: none.
        model: model that samples.
        run_fps: frames per second of its run, for models that were not published with a rate; None: unknown.
        says: print where the files play at another speed than the model was trained at.
    """
    rate = frame_rate(model) or run_fps
    if says and requested is not None and rate is not None and not same_rate(requested, rate):
        trained = f"the model was trained at {rate:g} frames per second"
        stderr().print(
            f"--fps {requested}: {trained}; videos play at {requested / rate:.3g} times their speed",
            soft_wrap=True,
        )
    return requested or file_fps(rate)
