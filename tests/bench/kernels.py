"""The fused operators on a GPU, in one call of less than ten minutes: built, checked, sanitized, measured.

    python -m tests.bench.kernels [--out DIR]

Prints Markdown for docs/benchmarks/kernels.md, what failed first; DIR gets every figure (kernels.json) and the
output of each step. It needs a GPU and, of our dependencies, PyTorch alone. compute-sanitizer is used where it is.
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
BENCH = """
import json, sys
from pipelines.benchmarks.kernels import Plan, bench_kernels
json.dump(bench_kernels(Plan(seconds=220)), open(sys.argv[1], "w"), indent=1)
"""


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


def steps(out: Path) -> Iterator[Step]:
    """What is run, the most telling first: what no time is left for is left out."""
    python = sys.executable
    check = [python, "-m", "train.kernels", "check"]
    yield Step("build the library", [python, "-m", "train.kernels", "build"])
    yield Step("check library", check, "library")
    yield Step("measure", [python, "-c", BENCH, str(out / "kernels.json")], limit_s=300)
    sanitizer = shutil.which("compute-sanitizer")
    sanitize = [f"{sanitizer}", "--error-exitcode", "9", "--tool"]
    if sanitizer:
        for kind in ("memcheck", "racecheck"):
            yield Step(f"sanitize, {kind}", [*sanitize, kind, *check, "--quick"], "library", limit_s=60)
    yield Step("check nvrtc", check, "nvrtc")
    if sanitizer:
        for kind in ("initcheck", "synccheck"):
            yield Step(f"sanitize, {kind}", [*sanitize, kind, *check, "--quick"], "library", limit_s=60)


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
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    done, began = [], time.monotonic()
    for step in steps(out):
        done.append(run(step, out, ALL_S - (time.monotonic() - began)))
        print(
            f"{done[-1].seconds:6.1f} s  {done[-1].step.name}: {done[-1].status}  {done[-1].last}", flush=True
        )
    print("\n| step | result | seconds |\n|---|---|---|")
    for one in sorted(done, key=lambda one: one.status == 0):
        result = "passed" if one.status == 0 else f"**{one.status or 'too slow'}** {one.last}"
        print(f"| {one.step.name} | {result} | {one.seconds:.0f} |")
    if (found := out / "kernels.json").exists():
        print("\n" + "\n".join(markdown(json.loads(found.read_text()))))
    sys.exit(any(one.status != 0 for one in done))


if __name__ == "__main__":
    main()
