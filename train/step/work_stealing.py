"""Work stealing in a run: free ranks run small pieces of a step that late ranks have not begun."""

from reelweave.loader.errors import UsageError
from reelweave.loader.stream.stealing.stealing_stream import StealingStream
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.train.distributed.world import World
from reelweave.train.step.batches import BatchStream


def share_steps(stream: BatchStream, config: WorkStealingConfig | None, world: World) -> BatchStream:
    """Return the stream, or one that shares its steps with the other ranks.

    Args:
        stream: this rank's microbatches.
        config: share and size of the pieces; None: nothing is shared.
        world: all ranks; one alone has nobody to share with.

    Raises:
        UsageError: the stream cannot share its steps, or the processes have no store of their start.
    """
    if config is None or world.size == 1:
        return stream
    if not isinstance(stream, VideoStream):
        raise UsageError(
            f"parallel.work_stealing shares the steps of a VideoStream; this stream is a {type(stream).__name__}: leave"
            " parallel.work_stealing out"
        )
    if world.store is None:
        raise UsageError(
            "parallel.work_stealing needs ranks that torchrun starts, and this process group was there before: leave it"
            " out, or let the run make its process group"
        )
    return StealingStream(stream, world.store.clone(), config)
