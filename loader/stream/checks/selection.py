"""Samples that a selection draws: said at a stream's start."""

import logging

from reelweave.loader.blend.selected import selection_counts
from reelweave.loader.blend.source import SampleSource

_log = logging.getLogger(__name__)


def log_selection(source: SampleSource) -> None:
    """Log how many samples each selection of a source draws, and how many it leaves out for want of a value.

    Args:
        source: samples of the stream.
    """
    for count in selection_counts(source):
        _log.warning("%s", count.sentence)
