"""What a stage raises on Ray is one sentence of its own kind, whatever traceback Ray puts around it."""

import pytest

from reelweave.curate.run.runners.ray_errors import in_words
from reelweave.loader.errors import MachineError, NoRoomError, ObjectError, RunError, UsageError


@pytest.mark.parametrize("kind", [RunError, MachineError, NoRoomError, ObjectError, UsageError])
def test_what_a_stage_raised_is_said_in_its_words(kind: type[Exception]) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    words = "cannot write clips/0.mp4: No space left on device; make room"
    trace = f'ray::MapBatches()\n  File "a.py", line 1, in write\n{kind.__module__}.{kind.__name__}: {words}\n\nadvice'
    error = ray.exceptions.RayTaskError("write", trace, kind(words)).as_instanceof_cause()
    assert isinstance(error, kind)
    with pytest.raises(kind) as caught, in_words(ray, 1.0):
        raise error
    assert str(caught.value) == f"stopped: {words}; run the same command again to go on"
    assert not isinstance(caught.value, ray.exceptions.RayError)
