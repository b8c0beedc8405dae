"""Arguments of a wrong type: refused in words that say what to give, before anything changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reelweave.loader.blend import open_blend, open_source
from reelweave.loader.buckets.assignment import assign
from reelweave.loader.dataset import Dataset, DatasetWriter, open_dataset, verify
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.loaders.step_loader import StepLoader
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config

_WRONG: list[tuple[Callable[[Any, VideoStream], object], str]] = [
    (lambda _, __: VideoStream("set", config(), 0, 1), r"source is of type str; .*open_dataset\("),  # type: ignore[arg-type]
    (lambda _, __: VideoStream(Dataset, config()), "source is of type type"),  # type: ignore[arg-type]
    (
        lambda dataset, _: VideoStream(dataset, {"buckets": {}}, 0, 1),
        "config is of type dict; .*StreamConfig",
    ),  # type: ignore[arg-type]
    (lambda dataset, _: VideoStream(dataset, config(), "0", 1), "rank is of type str"),  # type: ignore[arg-type]
    (lambda dataset, _: VideoStream(dataset, config(), 0, None), "world_size is None"),  # type: ignore[arg-type]
    (lambda _, stream: stream.load_state_dict(None), r"state is None; .*state_dict\(\)"),  # type: ignore[arg-type]
    (lambda _, stream: stream.advance(5), "batch is of type int"),  # type: ignore[arg-type]
    (lambda _, stream: stream.state_after(5), "batch is of type int"),  # type: ignore[arg-type]
    (lambda _, stream: stream.adopt(None), "source is None"),  # type: ignore[arg-type]
    (lambda _, stream: stream.recalibrate(5), "cost is of type int; .*PowerCost"),  # type: ignore[arg-type]
    (lambda dataset, _: StepLoader(dataset), r"stream is of type Dataset; .*VideoStream\("),
    (lambda _, stream: StepLoader(stream, processes=-1), "processes is -1"),
    (lambda _, stream: StepLoader(stream, processes=1.5), "processes is of type float"),  # type: ignore[arg-type]
    (lambda dataset, _: dataset["key01"], r"of type str; .*row_number\(key\)"),
    (lambda dataset, _: dataset[1:3], "of type slice"),
    (lambda _, __: open_dataset(None), "uri is None"),  # type: ignore[arg-type]
    (lambda _, __: open_dataset(5), "uri is of type int; give a path"),  # type: ignore[arg-type]
    (lambda _, __: open_source(None), "uri is None"),  # type: ignore[arg-type]
    (lambda _, __: open_blend(5), "uri is of type int"),  # type: ignore[arg-type]
    (lambda _, __: open_storage(b"set"), "uri is of type bytes"),  # type: ignore[arg-type]
    (lambda _, __: Dataset("set"), r"storage is of type str; .*open_dataset\("),  # type: ignore[arg-type]
    (lambda _, __: verify("set"), r"storage is of type str; .*open_storage\("),  # type: ignore[arg-type]
    (lambda _, __: open_source("set", {"a": 1}), "config is of type dict; .*StorageConfig"),  # type: ignore[arg-type]
    (lambda _, __: open_dataset("set", {"a": 1}), "config is of type dict; .*StorageConfig"),  # type: ignore[arg-type]
    (lambda dataset, _: assign(dataset, config().buckets), "index is of type Dataset; .*plan_index"),
    (lambda dataset, _: assign(dataset.plan_index, {}), "config is of type dict; .*BucketConfig"),  # type: ignore[arg-type]
    (lambda _, __: DatasetWriter(Path("set")), "storage is of type PosixPath"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), _WRONG)
def test_an_argument_of_a_wrong_type_is_refused_in_words(
    dataset: Dataset, call: Callable[[Any, VideoStream], object], words: str
) -> None:
    stream = VideoStream(dataset, config(epochs=1, decode=False))
    state = stream.state_dict()
    with pytest.raises(UsageError, match=words):
        call(dataset, stream)
    assert stream.state_dict() == state
