"""The fused operators on a GPU, in one call of less than ten minutes: checked and measured.

    python -m tests.bench.kernels [--out DIR] [--seconds S]
    python -m tests.bench.kernels --sanitize        # compute-sanitizer's four tools over our kernels
    python -m tests.bench.kernels --tiny            # a toy on the processor, to try the script out

Prints Markdown for docs/benchmarks/kernels.md, what failed first; DIR gets every figure (kernels.json) and the
output of each step. It needs a GPU and, of our dependencies, PyTorch and lazy-loader alone.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

STEP_S = 120
ALL_S = 570
TOOLS = ("racecheck", "memcheck", "synccheck", "initcheck")
OURS = "regex=^(layer_norm_modulate|gate_residual|qk_norm|reduce_(f32|bf16|f16|affine))"
"""Kernels that are checked; but initcheck must see who writes what they read."""
ENDS_S = 10
"""Seconds of a tool for its last case and its end."""


class Step(NamedTuple):
    """Something that is run.

    Attributes:
        name: in words.
        command: what.
        forced: the provider it is run for, if one.
        limit_s: after which it is ended.
    """

    name: str
    command: Sequence[str]
    forced: str | None = None
    limit_s: float = STEP_S


class Done(NamedTuple):
    """A step that was run: its exit status (None: it was ended), how long it took, the last line it said."""

    step: Step
    status: int | None
    seconds: float
    last: str


def steps(out: Path, seconds: float, tiny: bool) -> Iterator[Step]:
    """Yield what is run, the most telling first: what no time is left for is left out."""
    python = sys.executable
    check = [python, "-m", "reelweave.train.kernels", "which" if tiny else "check"]
    measure = [python, "-m", "tests.bench.kernels", "--measure", str(out / "kernels.json")]
    yield Step("measure", [*measure, "--seconds", str(seconds / 2), *["--tiny"] * tiny], limit_s=seconds)
    yield Step("check nvrtc", check, None if tiny else "nvrtc")


def sanitizers(seconds: float) -> Iterator[Step]:
    """Yield a step for each of compute-sanitizer's tools, of equal time; each says for how many cases it was enough."""
    limit_s = seconds / len(TOOLS)
    check = [
        sys.executable,
        "-m",
        "reelweave.train.kernels",
        "check",
        "--quick",
        "--seconds",
        str(limit_s / 2 - ENDS_S),
    ]
    for tool in TOOLS:
        tools = ["compute-sanitizer", "--error-exitcode", "9", "--tool", tool]
        names = [] if tool == "initcheck" else ["--kernel-name", OURS]
        yield Step(f"sanitize, {tool}", [*tools, *names, *check], "nvrtc", limit_s)


def measure(file: Path, seconds: float, tiny: bool) -> None:
    """Measure in this process, and write every figure."""
    import torch

    from reelweave.pipelines.benchmarks.kernels import TRIAL, Plan, bench_kernels
    from reelweave.train.kernels.eager import EAGER

    if tiny:
        found = bench_kernels(Plan(TRIAL, compiled=False, runs=2), torch.device("cpu"), {"reference": EAGER})
    else:
        found = bench_kernels(Plan(seconds=seconds))
    file.write_text(json.dumps(found, indent=1))


def run(step: Step, out: Path, left_s: float) -> Done:
    """Runs it while there is time; what it says goes to a file of its name."""
    if left_s < 1:
        return Done(step, None, 0, "no time was left")
    environment = os.environ | ({"REELWEAVE_KERNELS": step.forced} if step.forced else {})
    began = time.monotonic()
    with (out / f"{step.name.replace(', ', '-').replace(' ', '-')}.log").open("w+") as log:
        try:
            status = subprocess.run(
                step.command,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=min(step.limit_s, left_s),
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        log.seek(0)
        lines = log.read().strip().splitlines()
    return Done(step, status, time.monotonic() - began, lines[-1] if lines else "")


def markdown(result: dict) -> Iterator[str]:
    """The aims, then every figure."""
    yield f"{result['device']}, torch {result['torch']}; a copy moves {result['copy_gb_per_s']:.0f} GB/s.\n"
    yield "| aim | at least | reached | where |\n|---|---|---|---|"
    for goal in sorted(result["goals"], key=lambda goal: goal["met"] is not False):
        reached = "not measured" if goal["reached"] is None else f"{goal['reached']:.2f}"
        missed = "" if goal["met"] is not False else " **missed**"
        yield f"| {goal['aim']} | {goal['least']} | {reached}{missed} | {goal['where'] or ''} |"
    yield "\n| operator | N x D | pass | by | ms | of a copy |\n|---|---|---|---|---|---|"
    for row in result["rows"]:
        cells = (row["operator"], row["case"], row["direction"], row["by"])
        yield "| " + " | ".join(cells) + f" | {row['milliseconds']:.4f} | {row['of_copy']:.1%} |"
    if result["left_out"]:
        yield f"\nNot measured for lack of time: {'; '.join(result['left_out'])}."
    host = ", ".join(f"{name} {value:.0f} us" for name, value in result["host_us"].items())
    yield f"\nHost, a call and its gradient: {host}."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("kernels-out"))
    parser.add_argument("--seconds", type=float, default=ALL_S)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.seconds, options.tiny)
        return
    out, seconds = options.out, options.seconds
    out.mkdir(parents=True, exist_ok=True)
    if options.sanitize and not shutil.which("compute-sanitizer"):
        sys.exit("compute-sanitizer is not installed here")
    done, began = [], time.monotonic()
    for step in sanitizers(seconds) if options.sanitize else steps(out, seconds, options.tiny):
        done.append(run(step, out, seconds - (time.monotonic() - began)))
        print(
            f"{done[-1].seconds:6.1f} s  {done[-1].step.name}: {done[-1].status}  {done[-1].last}",
            file=sys.stderr,
            flush=True,
        )
    print("| step | result | seconds |\n|---|---|---|")
    for one in sorted(done, key=lambda one: one.status == 0):
        result = "passed" if one.status == 0 else f"**{one.status or 'too slow'}** {one.last}"
        print(f"| {one.step.name} | {result} | {one.seconds:.0f} |")
    if (found := out / "kernels.json").exists():
        print("\n" + "\n".join(markdown(json.loads(found.read_text()))))
    sys.exit(any(one.status != 0 for one in done))


if __name__ == "__main__":
    main()
