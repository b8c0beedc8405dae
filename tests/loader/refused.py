"""Refusals by worker processes of loaders."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reelweave.loader.errors import UsageError


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Expect a refusal, and forget its frames.

    What a worker process raised is in a circle with the frame that raises it again, and so are the loaders of the test:
    the next garbage collection, in whichever test, would wait 5 s for each of their processes.
    """
    with pytest.raises(UsageError, match=words) as found:
        yield
    traceback.clear_frames(found.tb)
    del found  # or it is in a circle with this frame
