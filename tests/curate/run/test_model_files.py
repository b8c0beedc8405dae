"""A model is what its files hold: another content is another model, and the same content is hashed once."""

import os
from pathlib import Path

import pytest

from curate.config import CurateConfig
from curate.ledger import Ledger
from curate.run.model_files import model_digests
from loader.storage import open_storage


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "config.json").write_text("{}")
    (folder / "preprocessor_config.json").write_text('{"size": 224}')
    return folder


def digest(model: Path) -> str:
    config = CurateConfig.model_validate({"captions": {"model": str(model)}})
    (found,) = model_digests(config, Ledger(open_storage(model.parent / "dataset"))).values()
    return found


def test_without_models_there_is_nothing_to_know(tmp_path: Path) -> None:
    assert model_digests(CurateConfig(), Ledger(open_storage(tmp_path / "out"))) == {}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "preprocessor_config.json"])
def test_one_byte_of_weights_or_preprocessing_makes_another_model(model: Path, name: str) -> None:
    before = digest(model)
    path = model / name
    stat = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a copy that keeps times does
    assert digest(model) != before


def test_what_is_no_part_of_the_model_makes_no_difference(model: Path) -> None:
    before = digest(model)
    (model / "notes.md").write_text("good on films")
    assert digest(model) == before
    model.rename(model.parent / "moved")
    assert digest(model.parent / "moved") == before


def test_files_that_are_the_same_are_not_read_again(model: Path) -> None:
    before = digest(model)
    weights = model / "model.safetensors"
    ledger = Ledger(open_storage(model.parent / "dataset"))
    note = ledger.read_note("models")
    note[str(weights.resolve())]["sha256"] = "remembered"
    ledger.write_note("models", note)
    assert digest(model) != before
