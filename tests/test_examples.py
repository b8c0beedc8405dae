"""Each example, by the commands of its own head comment, in an empty folder with two videos and without a network.

Numbers of the streaming examples: tests/loader/stream/test_frameworks.py.
"""

import ast
import io
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.dataset import open_dataset
from reelweave.pipelines.cli import main
from tests import example_ranks
from tests.media import write_video
from tests.thorough import thorough
from tests.tiny_models import tiny_classifier, tiny_two_towers

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
COMMAND = re.compile(r"^(?:# )?((?:python|reelweave|torchrun) .+)$", re.M)
IMPORTED = {"my_model.py", "videos.csv", "README.md"}
NOTEBOOK = "look_at_a_dataset.ipynb"
Run = Callable[[str], list[str]]


def commands(name: str) -> list[str]:
    """What the head comment says to type."""
    text = (EXAMPLES / name).read_text()
    head = text.split('"""')[1] if text.startswith('"""') else re.match(r"(#.*\n)+", text)[0]
    return COMMAND.findall(head)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the examples, and the videos that the list names."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(EXAMPLES, place / "examples")
    for number, name in enumerate(("boat", "market")):
        write_video(place / f"examples/raw/{name}.mp4", (26,) * 5, size=(320, 192), first_scene=5 * number)
    return place


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """Runs all commands of an example and returns them, in this process but for the ranks of torchrun."""
    monkeypatch.chdir(place)

    def one(command: str) -> None:
        program, *words = shlex.split(command)
        if program == "reelweave":
            words += ["--set", "run.runner=sequential"] if words[0] == "curate" else []
            assert main(words) == 0, command
        elif program == "python":
            monkeypatch.setattr(sys, "argv", words)
            monkeypatch.syspath_prepend(str(Path(words[0]).parent.resolve()))  # as Python does
            runpy.run_path(words[0], run_name="__main__")
        else:
            assert words[0] == "--nproc-per-node"
            ended = request.getfixturevalue("ranks").run(
                example_ranks.run, int(words[1]), str(place), *words[2:]
            )
            assert not any(ended.codes), ended.errors

    def every(name: str) -> list[str]:
        found = commands(name)
        for command in found:
            one(command)
        return found

    return every


@pytest.fixture(scope="module")
def dataset(place: Path, request: pytest.FixtureRequest) -> Path:
    """What the list becomes."""
    with pytest.MonkeyPatch.context() as patch:
        every = run.__wrapped__(place, patch, request)
        assert len(every("curate_list.yaml")) == 4
    return place / "my-dataset"


def test_every_example_says_how_it_is_run_and_is_short() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert files > IMPORTED
    page = (EXAMPLES / "README.md").read_text()
    assert f"({NOTEBOOK})" in page
    for name in files - IMPORTED - {NOTEBOOK}:
        assert any(f"examples/{name}" in command for command in commands(name)), name
        assert f"({name})" in page
    for name in files - {"README.md", NOTEBOOK}:
        assert len((EXAMPLES / name).read_text().splitlines()) <= 60, name


@thorough
def test_a_list_becomes_a_dataset_by_rules_of_ones_own(dataset: Path) -> None:
    samples = list(open_dataset(dataset))
    assert {sample.row["source"].rsplit("/", 1)[-1] for sample in samples} == {"boat.mp4", "market.mp4"}
    captions = {sample.row["caption"] for sample in samples}
    assert "A boat crosses the bay, seen from a cliff" in captions
    assert {sample.row["attributes"]["photographer"] for sample in samples} == {"N. N."}
    assert (dataset / "report" / "index.html").is_file()


def test_stages_with_models_embed_and_judge_clips(
    place: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_two_towers(place / "models/siglip2", "siglip")
    tiny_two_towers(place / "models/clip", "clip")
    tiny_classifier(place / "models/safety", ("normal", "nsfw"))
    assert len(run("curate_stages.yaml")) == 2
    listed = capsys.readouterr().out
    assert "score unsafe: probability" in listed
    assert "stages.safety.labels: classes that are unsafe" in listed
    dataset = open_dataset(place / "my-stages")
    rows = dataset.accounting.to_pylist()
    assert {(Path(row["source"]).stem, row["state"], row["reason"]) for row in rows} == {
        ("boat", "kept", ""),
        ("market", "failed", "it has no caption"),
    }
    sample = next(iter(dataset))
    assert np.load(io.BytesIO(sample.embeddings["video.npy"])).shape == (16,)
    assert 0 < sample.row["scores"]["unsafe"] < 0.9
    assert -1 < sample.row["scores"]["text_match"] < 1
    for name, stage in (("siglip2", "siglip2"), ("caption_match", "match"), ("safety", "safety")):
        (command,) = run(f"stage_{name}.py")
        assert f"stages.{stage}.use=examples/stage_{name}.py:" in command


@thorough
def test_the_streaming_examples_start_as_they_say(dataset: Path, run: Run) -> None:
    # The others differ in the lines that test_frameworks.py runs.
    assert [command.split()[0] for command in run("stream_ddp.py")] == ["torchrun"]
    heads = {path.name: commands(path.name) for path in EXAMPLES.glob("stream_*.py")}
    assert heads == {name: [f"torchrun --nproc-per-node 2 examples/{name} my-dataset"] for name in heads}


def test_losses_are_told_by_dataset_and_source(
    dataset: Path, run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(run("condition_on_fields.py")) == 1
    lines = capfd.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith("dataset 0, ")]
    assert [line.split(",")[1].rsplit("/", 1)[-1].split(":")[0] for line in told] == [
        "boat.mp4",
        "market.mp4",
    ]
    assert sum(int(line.split()[-2]) for line in told) == len(open_dataset(dataset))


@thorough
def test_a_cluster_is_planned(place: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(run("plan_cluster.py")) == 2
    told = capsys.readouterr().out
    assert "chosen: " in told
    assert "64 GPUs" in told
    assert "<svg" in (place / "plan.html").read_text()


@thorough
def test_a_tiny_wan_is_finetuned_and_sampled(dataset: Path, place: Path, run: Run) -> None:
    assert len(run("finetune_tiny_wan.yaml")) == 4
    assert (place / "wan-lora" / "pytorch_lora_weights.safetensors").is_file()
    assert (place / "sample.mp4").is_file()


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    dataset: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    cells = json.loads((EXAMPLES / NOTEBOOK).read_text())["cells"]
    seen: dict[str, object] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # nothing of whoever ran it last is kept
            *before, last = ast.parse("".join(cell["source"])).body
            exec(compile(ast.Module(before, []), NOTEBOOK, "exec"), seen)
            shown.append(eval(compile(ast.Expression(last.value), NOTEBOOK, "eval"), seen))
    _, sample, rows, accounting, scores, buckets, picture = shown
    assert "<img" in sample._repr_html_()
    assert len(rows) == len(open_dataset(dataset))
    assert accounting["sum"].sum() == pytest.approx(10 * 26 / 25)
    assert "motion" in scores.index
    assert buckets["samples"].sum() == len(rows)
    assert picture.size[1] == 176
