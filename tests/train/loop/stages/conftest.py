import pytest

from reelweave.train.loop.trainer import Trainer
from tests.train.clips import ClipStream
from tests.train.loop.stages.stage_runs import N, staged


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first stage, with an average of its weights."""
    out = tmp_path_factory.mktemp("first") / "run"
    Trainer(staged(steps=N, ema=0.5), ClipStream(), out).run()
    return out
