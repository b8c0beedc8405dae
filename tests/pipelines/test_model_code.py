"""No command runs code that a model brings, nor asks for leave, also where somebody says yes on a terminal."""

import ast
import json
import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from reelweave.loader.dataset import DatasetWriter, open_dataset
from reelweave.loader.storage import open_storage
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.text import TransformersTextConfig
from reelweave.train.models.encoders.text import build_text_encoder
from tests.commands import reelweave
from tests.loader.stream_clips import SHAPES, config, make_sample
from tests.media import write_video
from tests.model_with_code import MARK, known_model, open_clip_model, open_clip_tokenizer, unknown_model
from tests.thorough import but
from tests.tiny_models import tiny_open_clip

ROOT = Path(__file__).parents[2]
LOADS = ("from_pretrained", "create_model", "create_model_and_transforms", "get_tokenizer", "pipeline")
KINDS: dict[str, Callable[[Path], Path]] = {
    "unknown": unknown_model,
    "known": known_model,
    "tower": lambda folder: open_clip_model(folder, str(unknown_model(folder / "text"))),
    "tokenizer": open_clip_tokenizer,
}


@pytest.fixture(autouse=True)
def yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A terminal as standard input on which somebody typed y again and again, and the file that code would write."""
    monkeypatch.setenv(MARK, str(tmp_path / "MARK"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    ours, theirs = pty.openpty()
    os.write(ours, b"y\n" * 100)
    with os.fdopen(theirs) as typed:
        monkeypatch.setattr(sys, "stdin", typed)
        yield tmp_path / "MARK"
    os.close(ours)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw videos, and a dataset of them."""
    folder = tmp_path_factory.mktemp("clips")
    frames, size = SHAPES[0]
    clip = write_video(folder / "raw/a.mp4", (frames,), size=size).read_bytes()
    with DatasetWriter(open_storage(folder / "ds")) as writer:
        for number in range(4):
            writer.add(make_sample(f"k{number}", clip, frames, size))
    return folder


def curated(clips: Path, out: Path, *settings: str) -> list[str]:
    words = ["curate", str(clips / "raw"), "--out", str(out), "--set", "run.runner=sequential"]
    words += ["--set", "spans.min_clip_s=0.1", "--set", "filters.min_short_side_px=0"]
    words += ["--set", "filters.min_duration_s=0", "--set", "run.isolate=false"]
    return [*words, *(word for one in settings for word in ("--set", one))]


def trained(clips: Path, out: Path, model: Path) -> list[str]:
    stream = config(microbatches=2, epochs=None, denominator="epoch").model_dump(mode="json")
    stream["buckets"] |= {"compression": TrainConfig().compression.model_dump(), "max_text_tokens": 65}
    values = {
        "latents": {"runner": "sequential"},  # Ray alone takes half a minute
        "stream": stream,
        "train": {
            "device": "cpu",
            "text": {"kind": "transformers", "name": str(model), "max_text_tokens": 8},
        },
    }
    file = out.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(values))
    return ["--config", str(file)]


COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[Path, Path, Path], list[str]]]] = {
    "captions": (
        ("unknown", "known"),
        lambda clips, out, model: curated(clips, out, f"captions.model={model}"),
    ),
    "rewrite": (
        ("unknown", "known"),
        lambda clips, out, model: curated(
            clips, out, f"captions.rewrite_model={model}", f"captions.model={model}"
        ),
    ),
    "text_embed": (
        ("unknown", "known"),
        lambda clips, out, model: curated(clips, out, f"text_embed.model={model}"),
    ),
    "embed": (
        ("tower", "tokenizer"),
        lambda clips, out, model: curated(clips, out, "embed.backend=open_clip", f"embed.model={model}"),
    ),
    "search": (
        ("tower", "tokenizer"),
        lambda clips, out, model: ["search", str(clips / "ds"), "a boat", "--model", str(model)],
    ),
    "train": (
        ("unknown",),
        lambda clips, out, model: [
            "train",
            "--set",
            f"dataset={clips / 'ds'}",
            "--set",
            f"out={out}",
            *trained(clips, out, model),
        ],
    ),
    "latents": (
        ("unknown",),
        lambda clips, out, model: [
            "latents",
            str(clips / "ds"),
            "--out",
            str(out),
            *trained(clips, out, model),
        ],
    ),
}


CASES = [(name, kind) for name, (kinds, _) in COMMANDS.items() for kind in kinds]


@pytest.mark.parametrize(("command", "kind"), but(CASES[:-1], CASES))
def test_no_command_runs_code_of_a_model(
    clips: Path, tmp_path: Path, yes: Path, command: str, kind: str
) -> None:
    model = KINDS[kind](tmp_path / "model")
    done = reelweave(*COMMANDS[command][1](clips, tmp_path / "out", model))
    said = done.stdout + done.stderr
    assert not yes.exists(), said
    assert done.returncode in (0, 2), said
    assert "trust_remote_code" not in said
    assert "[y/N]" not in said
    if kind in ("unknown", "tower"):
        assert done.returncode == 2
        assert "which is never run here" in said, said


def test_a_text_encoder_of_training_is_loaded_without_code(tmp_path: Path, yes: Path) -> None:
    config = TransformersTextConfig(name=str(known_model(tmp_path / "model")), max_text_tokens=8)
    assert build_text_encoder(config) is not None
    assert not yes.exists()


@pytest.mark.parametrize("named", ["folder", "hub", "weights"])
def test_a_manifest_never_names_what_is_loaded(clips: Path, tmp_path: Path, yes: Path, named: str) -> None:
    model, pretrained = {
        "folder": (str(tiny_open_clip(tmp_path / "model")), ""),
        "hub": ("hf-hub:its/own", ""),
        "weights": ("ViT-B-32", str(tmp_path / "model/open_clip_model.safetensors")),
    }[named]
    [sample] = [make_sample("a", (clips / "raw/a.mp4").read_bytes(), *SHAPES[0])]
    embed = {"backend": "open_clip", "model": model, "pretrained": pretrained}
    with DatasetWriter(open_storage(tmp_path / "ds"), config={"curate": {"embed": embed}}) as writer:
        writer.add(sample)
    assert open_dataset(tmp_path / "ds").manifest.config["curate"]["embed"]["model"] == model
    done = reelweave("search", tmp_path / "ds", "a boat")
    option = "--pretrained" if named == "weights" else "--model"
    assert (done.returncode, f"search with {option}" in done.stderr) == (2, True), done.stderr


def test_models_are_loaded_in_one_place_alone() -> None:
    """diffusers runs no code of a model's publisher, in the classes that are named to it."""
    found = []
    for room in ("loader", "curate", "train", "pipelines"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LOADS
                ):
                    found.append(f"{path.relative_to(ROOT)}: {node.func.attr}")
    assert sorted(found) == [
        "loader/pretrained.py: create_model",
        "loader/pretrained.py: from_pretrained",
        "loader/pretrained.py: get_tokenizer",
        "train/models/published/vae.py: from_pretrained",
    ]


def test_the_folders_do_run_their_code_where_they_may(tmp_path: Path, yes: Path) -> None:
    """Else the tests above would show nothing."""
    from transformers import AutoConfig

    AutoConfig.from_pretrained(unknown_model(tmp_path / "model"), trust_remote_code=True)
    assert yes.exists()
    assert json.loads((tmp_path / "model/config.json").read_text())["model_type"] == "own"
