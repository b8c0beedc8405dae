"""Reelweave as a library: public names, ``len`` and indexing of a dataset, what notebooks show."""

import io
import os
import pydoc
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reelweave
import reelweave.curate as curate_package
import reelweave.loader as loader
import reelweave.train as train
from reelweave.loader.dataset import DatasetWriter, Sample, open_dataset
from reelweave.loader.dataset.samples.preview import thumbnail
from reelweave.loader.storage import open_storage
from tests.loader.stream_clips import make_sample
from tests.media import write_video

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    clip = write_video(tmp_path_factory.mktemp("clip") / "0.mp4", (30,), size=(640, 480)).read_bytes()
    return [make_sample(f"key{number}", clip, 30, (640, 480)) for number in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    with DatasetWriter(open_storage(folder)) as writer:
        for sample in samples:
            writer.add(sample)
    return folder


def test_the_facade_has_every_public_name_of_the_packages_and_nothing_else() -> None:
    assert dir(reelweave) == sorted({*dir(loader), *dir(curate_package), *dir(train)})
    assert reelweave.VideoStream is loader.VideoStream
    assert reelweave.Trainer is train.Trainer
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert reelweave.__version__ == project["version"]
    with pytest.raises(AttributeError, match="no attribute 'Videostream'"):
        _ = reelweave.Videostream


@pytest.mark.parametrize("package", [loader, curate_package, train])
def test_every_listed_name_can_be_imported_and_no_module_hides_it(package: object) -> None:
    names = dir(package)
    assert names == sorted(package.__all__)
    assert all(callable(getattr(package, name)) for name in names)


OWN_NAMES = ("curate", "loader", "pipelines", "train")


def _run_beside_own_files(folder: Path, code: str) -> str:
    """Run code in a folder that holds a user's own file and folder of each name of ours."""
    for name in OWN_NAMES:
        (folder / f"{name}.py").write_text("raise SystemExit('a user's own file ran')\n")
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise SystemExit('a user's own package ran')\n")
    (folder / "own.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "own.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_users_own_files_of_the_packages_names_change_nothing(tmp_path: Path) -> None:
    code = (
        "import reelweave\n"
        "for name in reelweave.__all__: getattr(reelweave, name)\n"
        "import reelweave.pipelines.cli\n"
        "print(reelweave.Trainer.__module__, reelweave.curate.CurateConfig.__name__)\n"
    )
    assert _run_beside_own_files(tmp_path, code) == "reelweave.train.loop.trainer CurateConfig\n"


@pytest.mark.parametrize("before", ["", "import reelweave.curate.config\n"])
def test_curate_is_called_whether_its_package_was_imported_before_or_not(tmp_path: Path, before: str) -> None:
    code = (
        "from reelweave import CurateConfig, UsageError, curate\n"
        "try: curate(['nothing.mp4'], 'out', CurateConfig())\n"
        "except UsageError as error: print('nothing.mp4' in str(error))\n"
    )
    assert _run_beside_own_files(tmp_path, before + code) == "True\n"


def test_help_describes_every_key_of_a_configuration_and_a_schema_does_so_once() -> None:
    text = pydoc.plain(pydoc.render_doc(loader.BucketConfig))
    fields = loader.BucketConfig.model_fields
    assert all(f"{name}: {field.description}" in text for name, field in fields.items())
    assert "max_crop: maximum share of a frame that is cropped away (default: 0.5)" in text
    schema = loader.BucketConfig.model_json_schema()
    assert fields["max_crop"].description not in schema["description"]
    assert "max_crop" in schema["properties"]


def test_a_dataset_is_a_sequence_of_samples(folder: Path, samples: list[Sample]) -> None:
    dataset = open_dataset(folder)
    assert len(dataset) == 3
    assert [sample.row["key"] for sample in dataset] == [sample.row["key"] for sample in samples]
    assert dataset[-1].row == dataset[np.int64(2)].row
    assert dataset[1].clip == samples[1].clip
    for outside in (3, -4):
        with pytest.raises(IndexError, match="3 samples"):
            _ = dataset[outside]
    with pytest.raises(TypeError):
        _ = dataset["key0"]  # type: ignore[index]


def test_texts_are_short_and_pages_show_a_picture(folder: Path) -> None:
    dataset = open_dataset(folder)
    assert "3 samples" in repr(dataset)
    sample = dataset[0]
    assert len(repr(sample)) < 200
    assert "key0" in repr(sample)
    assert "30 frames of 480x640" in repr(sample)
    picture = Image.open(io.BytesIO(thumbnail(sample.clip)))
    assert picture.size == (320, 240)
    hostile = replace(sample, row={**sample.row, "caption": "<script>" + 10_000 * "x"})
    page = hostile._repr_html_()
    assert "<img" in page
    assert "<script" not in page
    assert len(page) < 100_000


def test_a_clip_that_cannot_be_decoded_has_no_thumbnail(folder: Path) -> None:
    sample = open_dataset(folder)[0]
    for damaged in (b"", b"no video", sample.clip[:100]):
        broken = replace(sample, clip=damaged)
        assert "<img" not in broken._repr_html_()
        assert "<table" in broken._repr_html_()
    assert "<table" in replace(sample, clip=None)._repr_html_()
