"""The script of all GPU proofs: run from end to end without a GPU, ended steps, and what they leave."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.bench.first_run import CALL_S, CALLS, FOLDER, Step, run, write
from tests.bench.gpu_equality import CASES as EQUALITY
from tests.bench.gpu_equality import Row, markdown, measured
from tests.thorough import thorough

ROOT = Path(__file__).parents[2]


def python(code: str, limit_s: float = 60, figures: tuple[str, ...] = ()) -> Step:
    command = [sys.executable, "-c", code, FOLDER]
    return Step("a step", command, command, limit_s, figures)


@thorough
def test_a_call_is_rehearsed_from_the_shell(tmp_path: Path) -> None:
    found = subprocess.run(
        [ROOT / "infra/gpu/first_run", "sanitize", "--rehearse", "--out", tmp_path],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    left = json.loads((tmp_path / "sanitize.json").read_text())
    assert left["machine"]["torch"]
    assert [one["status"] for one in left["steps"]] == [
        0,
        0,
    ]  # the check, which compiles, then the sanitizers
    assert "eager: works" in (tmp_path / "sanitize.md").read_text()


def test_figures_and_output_are_kept(tmp_path: Path) -> None:
    code = "import sys; print('| a | table |'); print('why', file=sys.stderr)"
    code += "; open(sys.argv[1] + '/rows.csv', 'w').write('B,S\\n1,20\\n')"
    code += "; open(sys.argv[1] + '/rows.jsonl', 'w').write('{\"x\": 1}\\n{\"x\": 2}\\n'); sys.exit(3)"
    one = run(python(code, figures=("rows.csv", "rows.jsonl", "absent.json")), tmp_path / "0", False, 60)
    assert (one["status"], one["out"], one["log"]) == (3, "| a | table |\n", "why\n")
    assert one["figures"] == [[{"B": "1", "S": "20"}], [{"x": 1}, {"x": 2}]]
    write(tmp_path, "kernels", {"torch": "2.11"}, [one])
    assert "## a step: FAILED\n\n| a | table |" in (tmp_path / "kernels.md").read_text()
    assert json.loads((tmp_path / "kernels.json").read_text())["steps"][0]["figures"] == one["figures"]


@thorough
def test_a_step_is_ended_with_all_its_processes_and_what_it_had_stays(tmp_path: Path) -> None:
    code = "import subprocess, sys; open(sys.argv[1] + '/rows.jsonl', 'w').write('{\"x\": 1}\\n{\"x')"
    code += "; sys.stdout.buffer.write(b'half \\xff'); sys.stdout.flush()"
    code += "; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).wait()"
    one = run(python(code, limit_s=10, figures=("rows.jsonl",)), tmp_path / "0", False, 60)
    assert (one["status"], one["out"]) == (None, "half \ufffd")
    assert one["figures"] == [[{"x": 1}, '{"x']]
    assert run(python(code), tmp_path / "1", False, left_s=1)["log"] == "no time was left"


def test_steps_fit_their_call() -> None:
    for steps in CALLS.values():
        assert sum(step.limit_s for step in steps) <= CALL_S
        assert all("--rehearse" not in step.command and step.rehearsed != step.command for step in steps)


@thorough
def test_a_run_equals_itself_on_the_processor() -> None:
    case = next(case for case in EQUALITY if case.name == "resumed")
    assert measured(replace(case, changes={}), "cpu") == 0.0


def test_wrong_rows_come_first() -> None:
    rows = [Row("right", 0.0, 0.1, 1.0), Row("off", 0.2, 0.1, 1.0), Row("ended", None, 0.1, 1.0, "no word")]
    lines = list(markdown(rows, "a GPU"))[2:]
    assert lines == [
        "| off | 0.2 | 0.1 | **wrong** |",
        "| ended | not measured: no word | 0.1 | **wrong** |",
        "| right | 0 | 0.1 |  |",
    ]
