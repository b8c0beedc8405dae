"""Times of a sample's frames, where choosing frames needs them."""

from reelweave.loader.base.arrays import Floats
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.dataset.samples.frames.shown_frames import has_variable_rate, read_times
from reelweave.loader.errors import refuse_shortage


def variable_times(clip: TrainingSample) -> Floats | None:
    """Return when each frame of a clip of variable rate begins, float64 [frames], seconds after the first.

    None for a constant rate, which curated clips have, for a clip without time stamps or pixels, and for one that
    cannot be decoded, which the decode will name.
    """
    import av

    if clip.upright or not len(clip.media):
        return None
    try:
        times_s = read_times(clip.media)
    except (av.FFmpegError, IndexError) as error:
        refuse_shortage(error)
        return None
    return times_s if times_s is not None and has_variable_rate(times_s) else None
