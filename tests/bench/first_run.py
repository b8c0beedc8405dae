"""All proofs that need a GPU, in calls of less than ten minutes each, the most telling first.

    infra/gpu/first_run CALL --out DIR [--rehearse]

CALL is one of open, brief, kernels, steps, right, shapes, sanitize. DIR gets CALL.json (the machine, the status and
figures of each step), CALL.md (the tables of docs/benchmarks) and CALL.log (what the steps printed). All three grow
with every step, so that a call that is cut short leaves what it had. ``--rehearse`` runs the same steps as toys on the
processor.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tests.bench.train_step_goals import PEER_FULL

CALL_S = 570
PATIENCE = 6
"""Times as long as on a GPU that a rehearsal may take, on a processor with other work."""
PYTHON = sys.executable


class Step(NamedTuple):
    """One command of a call.

    Attributes:
        name: in words.
        command: with its arguments; FOLDER stands for a folder of the step's own.
        rehearsed: the same as a toy on the processor.
        limit_s: time after which it is ended.
        figures: files in its folder that hold its figures: JSON, JSON lines or CSV.
    """

    name: str
    command: Sequence[str]
    rehearsed: Sequence[str]
    limit_s: float
    figures: Sequence[str] = ()


FOLDER = "FOLDER"


def bench(name: str, *options: str) -> list[str]:
    """Return the command of a benchmark of this folder."""
    return [PYTHON, "-m", f"tests.bench.{name}", *options]


def reelweave(*words: str) -> list[str]:
    """Return a command of `reelweave`."""
    return [PYTHON, "-m", "reelweave.pipelines.cli", *words]


_WIDE = ("--config", "infra/gpu/shapes.yaml")
_TOY = {
    "train.device": "cpu",
    "train.dtype": "float32",
    "train.model": "{hidden: 48, heads: 2, layers: 2}",
    "stream.buckets.frames": "[5, 9]",
    "stream.buckets.sizes": "[[32, 32], [32, 64]]",
    "stream.buckets.memory_tokens": "300",
}
_SMALL = (*_WIDE, *(word for key, value in _TOY.items() for word in ("--set", f"{key}={value}")))
_SHAPES = f"{FOLDER}/shapes.csv"
_CASCADES = f"{FOLDER}/cascades.csv"

_FEWER = {"frames": "[17, 81]", "sizes": "[[480, 832]]", "memory_tokens": "33000"}
_FEW = (
    *_WIDE,
    *(word for key, value in _FEWER.items() for word in ("--set", f"stream.buckets.{key}={value}")),
)
_CHECK = Step(
    "the kernels against float64",
    [PYTHON, "-m", "reelweave.train.kernels", "check"],
    [PYTHON, "-m", "reelweave.train.kernels", "which"],
    110,
)

CALLS: dict[str, tuple[Step, ...]] = {
    "open": (
        _CHECK,
        Step(
            "backward, rows at once",
            bench("backward_teams"),
            bench("backward_teams", "--tiny"),
            70,
        ),
        Step(
            "peer of a training step",
            bench("train_step", "--out", FOLDER, "--only", "nvrtc, full", PEER_FULL),
            bench("train_step", "--out", FOLDER, "--tiny", "--only", "full", PEER_FULL),
            130,
            ("train_step.jsonl",),
        ),
        Step(
            "cascades",
            reelweave("bench", "cascades", *_FEW, "--out", _CASCADES, "--rounds", "2"),
            reelweave("bench", "cascades", *_SMALL, "--out", _CASCADES, "--rounds", "1"),
            70,
            ("cascades.csv",),
        ),
        Step(
            "sanitizers",
            bench("kernels", "--sanitize", "--out", FOLDER, "--seconds", "110"),
            [PYTHON, "-m", "reelweave.train.kernels", "which"],
            115,
        ),
        Step(
            "shapes",
            reelweave("bench", "shapes", *_FEW, "--out", _SHAPES),
            reelweave("bench", "shapes", *_SMALL, "--out", _SHAPES),
            70,
            ("shapes.csv",),
        ),
    ),
    "brief": (
        Step(
            "equal to the processor",
            bench("gpu_equality", "--out", FOLDER, "--seconds", "100", "--at-once", "8"),
            bench("gpu_equality", "--out", FOLDER, "--tiny", "--only", "float32"),
            110,
            ("gpu_equality.jsonl",),
        ),
        Step(
            "kernels",
            bench("kernels", "--out", FOLDER, "--seconds", "180"),
            bench("kernels", "--out", FOLDER, "--tiny"),
            190,
            ("kernels.json",),
        ),
        Step(
            "training steps",
            bench("train_step", "--out", FOLDER, "--only", "compiled, nvrtc", "nvrtc, full", PEER_FULL),
            bench("train_step", "--out", FOLDER, "--tiny", "--only", "eager"),
            200,
            ("train_step.jsonl",),
        ),
    ),
    "kernels": (
        Step(
            "kernels",
            bench("kernels", "--out", FOLDER, "--seconds", "550"),
            bench("kernels", "--out", FOLDER, "--tiny"),
            560,
            ("kernels.json",),
        ),
    ),
    "steps": (
        Step(
            "training steps",
            bench("train_step", "--out", FOLDER),
            bench("train_step", "--out", FOLDER, "--tiny", "--only", "eager"),
            565,
            ("train_step.jsonl",),
        ),
    ),
    "right": (
        Step(
            "equal to the processor",
            bench("gpu_equality", "--out", FOLDER, "--seconds", "420", "--at-once", "8"),
            bench("gpu_equality", "--out", FOLDER, "--tiny", "--only", "float32", "sampled video"),
            430,
            ("gpu_equality.jsonl",),
        ),
        Step(
            "stall of a checkpoint",
            bench("checkpoint_stall", "--gib", "8", "--out", FOLDER),
            bench("checkpoint_stall", "--gib", "0.25", "--out", FOLDER),
            120,
        ),
    ),
    "shapes": (
        Step(
            "shapes",
            reelweave("bench", "shapes", *_WIDE, "--out", _SHAPES),
            reelweave("bench", "shapes", *_SMALL, "--out", _SHAPES),
            330,
            ("shapes.csv",),
        ),
        Step(
            "cascades",
            reelweave("bench", "cascades", *_WIDE, "--out", _CASCADES),
            reelweave("bench", "cascades", *_SMALL, "--out", _CASCADES, "--rounds", "1"),
            230,
            ("cascades.csv",),
        ),
    ),
    "sanitize": (
        _CHECK,
        Step(
            "sanitizers",
            bench("kernels", "--sanitize", "--out", FOLDER, "--seconds", "440"),
            [PYTHON, "-m", "reelweave.train.kernels", "which"],
            450,
        ),
    ),
}
"""Calls and the steps of each: first what no GPU has answered yet, then the best of all others, then those in order."""


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "gpus": gpus,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def run(step: Step, folder: Path, rehearse: bool, left_s: float) -> dict[str, Any]:
    """Run a step in a folder of its own; return its status, figures and output."""
    folder.mkdir()
    words = [word.replace(FOLDER, str(folder)) for word in (step.rehearsed if rehearse else step.command)]
    limit_s, began = min(step.limit_s * (PATIENCE if rehearse else 1), left_s), time.monotonic()
    found: dict[str, Any] = {"step": step.name, "command": words[1:], "status": None}
    if limit_s < 5:
        return found | {"seconds": 0.0, "figures": [], "out": "", "log": "no time was left"}
    with _printed(folder / "out") as out, _printed(folder / "log") as log:
        process = subprocess.Popen(words, stdout=out, stderr=log, start_new_session=True)
        try:
            found["status"] = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        out.seek(0)
        log.seek(0)
        printed = {"out": out.read(), "log": log.read()}
    figures = [read(folder / name) for name in step.figures if (folder / name).exists()]
    return found | {"seconds": time.monotonic() - began, "figures": figures} | printed


def _printed(path: Path) -> TextIO:
    return path.open("w+", encoding="utf-8", errors="replace")


def read(path: Path) -> Any:
    """Return a JSON file's value, the values of its lines, or a CSV file's rows; what was cut off, as text."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    if path.suffix == ".jsonl":
        return [_value(line) for line in text.splitlines()]
    return _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def write(out: Path, call: str, facts: dict[str, Any], done: Sequence[dict[str, Any]]) -> None:
    """Write the three files of a call."""
    figures = [{name: one[name] for name in one if name not in ("out", "log")} for one in done]
    (out / f"{call}.json").write_text(json.dumps({"machine": facts, "steps": figures}, indent=1))
    tables = [
        f"## {one['step']}: {'passed' if one['status'] == 0 else 'FAILED'}\n\n{one['out']}" for one in done
    ]
    (out / f"{call}.md").write_text("\n".join([f"{facts}\n", *tables]))
    (out / f"{call}.log").write_text("\n".join(f"## {one['step']}\n\n{one['log']}" for one in done))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("call", choices=CALLS, metavar="CALL", help=", ".join(CALLS))
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began, done, facts = time.monotonic(), list[dict[str, Any]](), machine()
    with tempfile.TemporaryDirectory() as scratch:
        for number, step in enumerate(CALLS[options.call]):
            left_s = CALL_S * (PATIENCE if options.rehearse else 1) - (time.monotonic() - began)
            one = run(step, Path(scratch) / str(number), options.rehearse, left_s)
            done.append(one)
            write(options.out, options.call, facts, done)
            print(one["out"])
            said = (one["log"].strip().splitlines() or [""])[-1]
            print(f"{one['step']}: {one['status']} after {one['seconds']:.0f} s  {said}", flush=True)
    sys.exit(any(one["status"] != 0 for one in done))


if __name__ == "__main__":
    main()
