"""The docs' recipes for extensions of our own code: performed word for word, they work, and touch few files."""

import json
import subprocess
from pathlib import Path

import pytest

from reelweave.loader.dataset import open_dataset
from tests.curate.run.test_run import SMALL_WORDS
from tests.media import write_video
from tests.recipes.recipe import Code
from tests.thorough import but, thorough

CLI = "reelweave.pipelines.cli"


@pytest.fixture
def code(tmp_path: Path) -> Code:
    return Code(tmp_path)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    write_video(folder / "two.mp4", (40, 40))
    return folder


def test_a_shot_detector(code: Code, raw: Path) -> None:
    code.perform("stages.md", "**A shot detector**")
    assert len(code.files) == 2
    code.check()
    out = code.home / "ds"
    words = (
        "--set=shots.detector=brightness",
        "--set=shots.brightness.min_step=5",
        "--set=stitch.enabled=false",
    )
    done = code.run(CLI, "curate", str(raw), "--out", str(out), *SMALL_WORDS, *words)
    assert done.returncode == 0, done.stderr
    starts = [row["start_s"] for row in open_dataset(out).accounting.to_pylist() if row["state"] == "kept"]
    assert sorted(starts) == [0.0, 1.6]
    assert (
        "shots.brightness.min_step"
        in code.run("reelweave.pipelines.configuration.config_docs", "page").stdout
    )


def test_a_planner(code: Code) -> None:
    code.perform("cascade.md", "### A planner of your own")
    assert len(code.files) == 2
    code.check()
    (code.home / "check.py").write_text(
        "from reelweave.train.cascade.simulation.cases import arachne\n"
        "from reelweave.train.cascade.planners.by_name import PLANNERS\n"
        "from tests.train.cascade.check import violations\n"
        "assert violations(arachne(), PLANNERS['fastest'](arachne(), 0)) == []\n"
    )
    done = code.run("check")
    assert done.returncode == 0, done.stderr


@thorough
def test_a_planner_is_compared_by_the_command(code: Code) -> None:
    code.perform("cascade.md", "### A planner of your own")
    done = code.run(CLI, "plan", "arachne", "--cascades", "--planner", "fastest", "--json")
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    assert planned["planners"]["fastest"]["makespan_s"] >= planned["lower_bound_s"]


def test_a_section_of_the_report(code: Code, raw: Path) -> None:
    code.perform("report.md", "## A section of your own")
    assert len(code.files) == 4
    code.check()
    out = code.home / "ds"
    (raw / "two.txt").write_text("three short words")
    done = code.run(CLI, "curate", str(raw), "--out", str(out), *SMALL_WORDS)
    assert done.returncode == 0, done.stderr
    assert "3 words on average; 0 samples without any" in (out / "report/index.html").read_text()
    done = code.run(CLI, "report", str(out), "--json")
    assert json.loads(done.stdout)["captions"] == {"empty": 0, "words": 3.0}


KERNEL = "kernels.md", "## An operator of your own"


def run_kernel_test(code: Code, marked: str) -> subprocess.CompletedProcess[str]:
    test = "tests/train/kernels/test_scaled_add.py"
    return code.run("pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", marked, test)


@thorough
def test_a_kernel(code: Code) -> None:
    code.add_tests()
    code.perform(*KERNEL)
    assert len(code.files) == 6
    code.check()
    done = run_kernel_test(code, "not toolchain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.toolchain
def test_a_kernel_compiles_and_agrees_with_float64(code: Code) -> None:
    code.add_tests()
    code.perform(*KERNEL)
    done = run_kernel_test(code, "toolchain")
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped" in done.stdout:
        pytest.skip("a compiler is missing")


@pytest.mark.parametrize(
    ("step", "lack"),
    but(
        (),
        [
            (4, "test_the_host_has_both_passes"),
            (1, "No module named 'reelweave.train.kernels.scaled_add'"),
            (2, "csrc/scaled_add.cu"),
            (3, "No module named 'reelweave.train.kernels.cuda.host_scaled_add'"),
            (5, "file or directory not found"),
        ],
        [(4, "test_the_host_has_both_passes")],
    ),
)
def test_a_kernel_needs_each_of_its_steps(code: Code, step: int, lack: str) -> None:
    code.add_tests()
    code.perform(*KERNEL, without=step)
    done = run_kernel_test(code, "not toolchain")
    assert done.returncode != 0
    assert lack in done.stdout + done.stderr


MODEL = "models.md", "## Add a published model"


def run_model_test(code: Code) -> subprocess.CompletedProcess[str]:
    tests = ("test_skyreels.py", "test_families.py")
    return code.run(
        "pytest", "-qx", "-n0", "-p", "no:cacheprovider", *(f"tests/train/models/{test}" for test in tests)
    )


@thorough
def test_a_published_model(code: Code) -> None:
    code.add_tests()
    code.perform(*MODEL)
    assert len(code.files) == 4
    code.check()
    done = run_model_test(code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("step", "lack"),
    but(
        (),
        [
            (2, "is a SkyReelsV2Transformer3DModel; supported are"),
            (1, "No module named 'reelweave.train.models.published.families.skyreels'"),
            (3, "file or directory not found"),
            (4, "docs/finetune.md has no row of SkyReelsV2Transformer3DModel"),
        ],
        [(1, "No module named 'reelweave.train.models.published.families.skyreels'")],
    ),
)
def test_a_published_model_needs_each_of_its_steps(code: Code, step: int, lack: str) -> None:
    code.add_tests()
    code.perform(*MODEL, without=step)
    done = run_model_test(code)
    assert done.returncode != 0
    assert lack in done.stdout + done.stderr


def test_a_recipe_that_leaves_out_a_step_is_noticed(code: Code) -> None:
    with pytest.raises(AssertionError, match="has no"):
        code.perform("cascade.md", "## Not there")
    with pytest.raises(AssertionError, match="0 times"):
        code._step("In `loader/errors.py`, above `nowhere`:\n\n        x = 1\n")
