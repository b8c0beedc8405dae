"""A resumed stream whose steps hold another number of samples says so, once."""

import pytest

from reelweave.loader.dataset import Dataset
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config


@pytest.mark.parametrize(
    ("ranks", "microbatches", "expected"),
    [
        (1, 2, None),
        (2, 1, None),
        (1, 4, "(1 ranks x 2) and has 4 now (1 ranks x 4): each step holds about 2 times the samples"),
        (1, 1, "(1 ranks x 2) and has 1 now (1 ranks x 1): each step holds about 0.5 times the samples"),
        (2, 2, "(1 ranks x 2) and has 4 now (2 ranks x 2)"),
    ],
)
def test_another_number_of_samples_a_step_is_said(
    ranks: int, microbatches: int, expected: str | None, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """The samples of a step doubled at the same learning rate, without a word."""
    stream = VideoStream(dataset, config(microbatches=2))
    start = stream.state_dict()
    state = next(stream.state_after(micro) for micro in stream if micro.ends_step)
    caplog.clear()
    for rank in range(ranks):
        resumed = VideoStream(dataset, config(microbatches=microbatches), rank, ranks)
        resumed.load_state_dict(start)  # no step was made
        assert "stream.microbatches" not in caplog.text
        resumed.load_state_dict(state)
        texts = [text for text in caplog.messages if "holds about" in text]
        assert len(texts) == (expected is not None)
        assert expected is None or expected in texts[0]
        if rank == 0:
            caplog.clear()
            expected = None
