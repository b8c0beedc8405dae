"""The dataset that the tests of the stream share."""

from pathlib import Path

import pytest

from reelweave.loader.dataset import Dataset, Sample, open_dataset
from tests.loader.stream_clips import SAMPLES, SHAPELESS, SHAPES, make_sample, write
from tests.media import write_video


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    folder = tmp_path_factory.mktemp("clips")
    clips = {
        shape: write_video(folder / f"{number}.mp4", (shape[0],), size=shape[1]).read_bytes()
        for number, shape in enumerate(SHAPES)
    }
    shapes = [SHAPES[number % len(SHAPES)] for number in range(SAMPLES)]
    made = [make_sample(f"key{number:02}", clips[shape], *shape) for number, shape in enumerate(shapes)]
    return [*made, make_sample(SHAPELESS, clips[SHAPES[0]], 4, (80, 64))]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Path:
    return write(tmp_path_factory.mktemp("dataset"), samples)


@pytest.fixture(scope="session")
def dataset(folder: Path) -> Dataset:
    return open_dataset(folder)
