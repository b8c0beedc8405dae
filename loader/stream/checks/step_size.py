"""Check of a resumed stream: do its steps hold as many samples as those of the state."""

import logging

from reelweave.loader.plan.position import EpochSegment

_log = logging.getLogger(__name__)


def warn_of_step_size(saved: EpochSegment, resumed: EpochSegment) -> None:
    """Log a warning if steps hold more or fewer microbatches than when a state was saved.

    Args:
        saved: last segment of the state.
        resumed: segment in which the stream goes on.
    """
    before, after = saved.ranks * saved.microbatches, resumed.ranks * resumed.microbatches
    if before == after:
        return
    _log.warning(
        "a step had %d microbatches when the state was saved (%d ranks x %d) and has %d now (%d ranks x %d): each step"
        " holds about %.3g times the samples, at the same learning rate. For the same steps keep ranks x"
        " stream.microbatches",
        before,
        saved.ranks,
        saved.microbatches,
        after,
        resumed.ranks,
        resumed.microbatches,
        after / before,
    )
