"""Training steps of a Wan-1.3B-shaped DiT on a GPU, in one call of less than ten minutes.

    python -m tests.bench.train_step [--out DIR]     # --tiny: a toy on a processor, to try the script out

Each kind of step is a process of its own; its row is added to DIR/train_step.jsonl as soon as it is there. At the end
Markdown for docs/benchmarks/train_step.md is printed. Of our dependencies it needs PyTorch, numpy, pyarrow, pydantic
and botocore; diffusers and torchao are measured where they are installed.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.train_step_goals import DATASHEET_TFLOPS, Goal, Row, goals

CASE_S = 120
ALL_S = 560
PEAK = "peak"


def measure(name: str, tiny: bool) -> None:
    """One case in this process; its row, or the device and its peak, as the last line of stdout."""
    import torch

    from reelweave.train.measure.peak_flops import measured_flops_per_s

    if name == PEAK:
        device = torch.device("cpu" if tiny else "cuda")
        told = "a processor; these figures say nothing" if tiny else torch.cuda.get_device_name()
        measured = {"device": told, "torch": torch.__version__, "tflops": measured_flops_per_s(device) / 1e12}
        print(json.dumps(measured))
        return
    from tests.bench.train_step_cases import CASES, SMALL, TINY, WAN, measured

    case = next(case for case in (TINY if tiny else CASES) if case.name == name)
    print(json.dumps(measured(case, SMALL if tiny else WAN)._asdict()))


def child(name: str, tiny: bool, operators: str, left_s: float) -> dict:
    """What a process of its own said of a case; under ``error`` why it said nothing."""
    limit_s = min(CASE_S, left_s)
    if limit_s < 10:
        return {"error": "no time was left"}
    command = [sys.executable, "-m", "tests.bench.train_step", "--case", name, *(["--tiny"] if tiny else [])]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"REELWEAVE_KERNELS": operators},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit_s:.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1][:300]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def run(tiny: bool, out: Path, only: Sequence[str] = ()) -> tuple[dict, list[Row]]:
    """All cases, one after the other; each written when it is there."""
    from tests.bench.train_step_cases import CASES, TINY

    began, rows = time.monotonic(), []
    with (out / "train_step.jsonl").open("w") as lines:

        def tell(found: dict) -> dict:
            lines.write(json.dumps(found) + "\n")
            lines.flush()
            print(json.dumps(found), file=sys.stderr, flush=True)
            return found

        device = tell(child(PEAK, tiny, "eager", ALL_S))
        for case in TINY if tiny else CASES:
            if not only or case.name in only:
                left_s = ALL_S - (time.monotonic() - began)
                rows.append(Row(**tell({"case": case.name} | child(case.name, tiny, case.operators, left_s))))
    return device, rows


def markdown(device: dict, rows: Sequence[Row]) -> Iterator[str]:
    """The aims, then every figure."""
    if "error" in device:
        yield f"The peak was not measured: {device['error']}\n"
        device = {"device": "unknown", "torch": "unknown", "tflops": None}
    measured, claimed = device["tflops"], DATASHEET_TFLOPS.get(device["device"])
    peak = "" if measured is None else f"; a dense bfloat16 product runs at {measured:.4g} TFLOP/s"
    yield f"{device['device']}, torch {device['torch']}{peak}.\n"
    yield "| aim | wanted | reached | where |\n|---|---|---|---|"
    yield from map(_goal, goals(rows, measured))
    yield (
        "\n| steps | seconds | +- | tokens/s | MFU | of the datasheet | peak GiB | predicted |\n|"
        + "---|" * 8
    )
    for row in rows:
        if row.error is not None or row.step_s is None:
            yield f"| {row.case} | not measured: {row.error} |" + " |" * 6
            continue
        speed = f"{row.tokens / row.step_s:,.0f}" if row.tokens else ""
        shares = " | ".join(_share(row.mfu(peak)) for peak in (measured, claimed))
        memory = " | ".join("" if x is None else f"{x:.2f}" for x in (row.peak_gib, row.predicted_gib))
        error = "" if row.memory_error is None else f" ({row.memory_error:+.1%})"
        yield f"| {row.case} | {row.step_s:.3f} | {row.spread:.1%} | {speed} | {shares} | {memory}{error} |"
    versions = ", ".join(f"{name} {_version(name)}" for name in ("diffusers", "torchao", "triton"))
    yield f"\n{versions}."


def _goal(goal: Goal) -> str:
    reached = "not measured" if goal.reached is None else f"{goal.reached:.3f}"
    missed = " **missed**" if goal.met is False else ""
    return f"| {goal.aim} | {goal.wanted} | {reached}{missed} | {goal.where or ''} |"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("train-step-out"))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="*", default=(), metavar="CASE")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        measure(options.case, options.tiny)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    found = run(options.tiny, options.out, options.only)
    print("\n".join(markdown(*found)))
    sys.exit(not any(row.error is None for row in found[1]))


if __name__ == "__main__":
    main()
