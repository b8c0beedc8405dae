"""Training scripts of other frameworks whose data part is replaced: stopped, and gone on with on other ranks."""

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import yaml

from tests.loader.stream.loaders import all_script_ranks, script_ranks
from tests.loader.stream_clips import BUCKETS, EVERY_KEY
from tests.thorough import but, chosen
from tests.train.ranks import Ranks

FOLDER = Path(__file__).parents[4] / "examples" / "unchanged"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*_loop.py"))
MOST_LINES = 5
SAVED, STOPPED = 2, 3  # after so many steps
MICROBATCHES = 2
RESUMED: dict[str, tuple[int, str]] = {
    "accelerate_loop": (3, "step_2"),
    "diffusers_loop": (1, "checkpoint-2"),
    "lightning_loop": (1, "epoch=0-step=2.ckpt"),
    "megatron_loop": (3, "iter_2.pt"),
    "torchtitan_loop": (3, "step-2"),
    "transformers_loop": (3, "checkpoint-2"),
}
"""Ranks that go on, and the checkpoint that they go on from."""


def changed_lines(name: str) -> tuple[list[str], list[str]]:
    """Lines that the difference adds and removes."""
    lines = (FOLDER / f"{name}.diff").read_text().splitlines()[2:]
    return [line[1:] for line in lines if line[0] == "+"], [line[1:] for line in lines if line[0] == "-"]


def apply(folder: Path, name: str) -> None:
    command = ["git", "apply", "-p0", "--unidiff-zero", f"{name}.diff"]
    subprocess.run(command, cwd=folder, check=True, env={"GIT_CEILING_DIRECTORIES": str(folder.parent)})


def test_all_are_run() -> None:
    assert sorted(RESUMED) == SCRIPTS
    page = (FOLDER.parents[1] / "docs" / "frameworks.md").read_text()
    assert all(f'--8<-- "examples/unchanged/{name}.diff"' in page for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_at_most_five_lines_change(name: str) -> None:
    added, removed = changed_lines(name)
    assert len(added) <= MOST_LINES
    assert len(removed) <= MOST_LINES
    assert max(map(len, added)) <= 110


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """The scripts with our lines, and what they read."""
    scripts = tmp_path_factory.mktemp("scripts") / "here"
    copytree(FOLDER, scripts)
    for name in SCRIPTS:
        apply(scripts, name)
    buckets = BUCKETS.model_copy(update={"max_batch": 1}).model_dump(mode="json")
    settings = {"buckets": buckets, "regime": "slot", "epochs": 1, "workers": 1}
    (scripts / "stream.yaml").write_text(yaml.safe_dump(settings))
    (scripts / "my-clips").symlink_to(folder)
    return scripts


@pytest.fixture(scope="module")
def ended(scripts: Path, ranks: Ranks, request: pytest.FixtureRequest) -> Callable[[str], list[dict]]:
    """Runs the scripts that are asked for, in few worlds; gives what each rank of a script trained."""
    names = chosen(request, "name")
    worlds = {2: {name: options(name) for name in names}}
    for name in worlds[2]:
        size, checkpoint = RESUMED[name]
        worlds.setdefault(size, {})[name] = [*options(name)[:4], "--resume", f"out/{name}/{checkpoint}"]
    run = script_ranks.run if names == ["accelerate_loop"] else all_script_ranks.run
    for size, calls in worlds.items():
        done = ranks.run(run, size, str(scripts), calls)
        assert done.codes == [0] * size, "\n".join(done.errors)

    def trained(name: str, size: int) -> list[dict]:
        return [json.loads((scripts / f"{name}.{size}.{rank}.json").read_text()) for rank in range(size)]

    return trained


def options(name: str) -> list[str]:
    return ["--data", "my-clips", "--out", f"out/{name}", "--max-steps", str(STOPPED)]


@pytest.mark.parametrize("name", but(["accelerate_loop"], SCRIPTS))
def test_a_stopped_script_goes_on_with_other_ranks(name: str, ended: Callable[..., list[dict]]) -> None:
    before, after = ended(name, 2), ended(name, RESUMED[name][0])
    assert {len(rank["prompts"]) for rank in before} == {STOPPED * MICROBATCHES}
    first = [prompts for rank in before for prompts in rank["prompts"][: SAVED * MICROBATCHES]]
    rest = [prompts for rank in after for prompts in rank["prompts"]]
    trained = sorted(prompt for prompts in (*first, *rest) for prompt in prompts)
    assert trained == [f"the caption of {key}" for key in EVERY_KEY]
    assert all(map(math.isfinite, (loss for rank in (*before, *after) for loss in rank["losses"])))
