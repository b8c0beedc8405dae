"""A model is what its files hold: another content is another model, and the same content is hashed once."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.assembly import model_stages
from reelweave.curate.run.runners.reservations import Resources
from reelweave.curate.run.runners.workers import Load, balance
from reelweave.curate.run.stages.judge import Judge
from reelweave.curate.run.stages.model_stages import model_digests, pipeline_stages
from reelweave.loader.storage import open_storage


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
    (found,) = model_digests(model_stages(config), Ledger(open_storage(model.parent / "dataset"))).values()
    return found


def test_without_models_there_is_nothing_to_know(tmp_path: Path) -> None:
    assert model_digests(model_stages(CurateConfig()), Ledger(open_storage(tmp_path / "out"))) == {}
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
    note = ledger.notes.read("models")
    note[str(weights.resolve())]["sha256"] = "remembered"
    ledger.notes.write("models", note)
    assert digest(model) != before


def test_a_worker_holds_the_weights_of_its_models_once(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(bytes(900))  # the same in another format
    head = model.parent / "head.pth"
    head.write_bytes(bytes(500))
    tower = model.parent / "tower.pt"
    tower.write_bytes(bytes(700))
    config = CurateConfig.model_validate(
        {
            "captions": {"model": str(model), "rewrite_model": str(model)},
            "text_embed": {"model": "somebody/not-in-the-cache"},
            "embed": {"backend": "open_clip", "model": "ViT-B-32", "pretrained": str(tower)},
            "aesthetic": {"weights": str(head)},
        }
    )
    sizes = {stage.name: stage.weights_mb for stage in model_stages(config)}
    assert sizes == {"captions": 0.002, "embed": 0.0012, "text_embed": 0.0}


def test_workers_with_a_model_are_no_more_than_memory_holds(model: Path) -> None:
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(10**10)  # as a model of 5 billion weights of 16 bits
    config = CurateConfig.model_validate(
        {"captions": {"model": str(model)}, "text_embed": {"model": str(model)}}
    )
    ledger = Ledger(open_storage(model.parent / "dataset"))
    go_on = Judge(config.filters, config.shard, {})
    stages = [(stage.clip_stage(ledger, {}, go_on), stage) for stage in model_stages(config)]
    on_processors, on_gpus = (
        {
            one.name: one.memory_mb
            for one in pipeline_stages(stages, gpus, config.run.worker_memory_mb)
            if one.keeps
        }
        for gpus in (0, 8)
    )
    assert on_processors == {"captions": 21_000, "text_embed": 21_000}  # computed in 32 bits
    assert on_gpus == {"captions": 11_000, "text_embed": 11_000}
    loads = [Load(name, 10.0, Resources(1, 0, size), 64) for name, size in on_processors.items()]
    assert balance(loads, Resources(64, 0, 128_000)) == {"captions": 3, "text_embed": 3}


def test_workers_that_make_inputs_reserve_what_preprocessing_loads(tmp_path: Path) -> None:
    weights = tmp_path / "tower.pt"
    weights.touch()
    config = CurateConfig.model_validate(
        {"embed": {"backend": "open_clip", "model": "ViT-B-32", "pretrained": str(weights)}}
    )
    ledger, go_on = Ledger(open_storage(tmp_path)), Judge(config.filters, config.shard, {})
    stages = [
        # No weights are here to ask for the preprocessing.
        (replace(stage.clip_stage(ledger, {}, go_on), function=lambda tasks, _: tasks), stage)
        for stage in model_stages(config)
    ]
    reserved = {one.name: one.memory_mb for one in pipeline_stages(stages, 1, config.run.worker_memory_mb)}
    assert (
        reserved["embed.input"] >= config.run.worker_memory_mb + 800
    )  # measured: 803 MB beside PyAV and numpy
