"""Random plans of cascades on real ranks: gradients against one process, and that none hangs.

    python -m tests.bench.cascade_plans [--plans 1000] [--ranks 4] [--dtype float64]
    python -m tests.bench.cascade_plans --block 2 [--model mmdit] [--plans 1000] [--ranks 8]

Groups overlap, ranks idle, samples repeat, latents and contexts are made or stored; every plan must end, leave no
handoff behind, and give the gradients of one process within 1e-10 (float64) or 1e-5 (float32). With `--block`
the DiT's weights are sharded over blocks of so many ranks, and no rank may hold or gather more than its part. Prints a
row of docs/benchmarks/cascade_plans.md.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.train.cascade.execution.programs import measure_plans
from tests.train.cascade.execution.sharded_programs import MODELS, measure_sharded
from tests.train.ranks import Ranks

AT_ONCE = 25  # plans of one world


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument(
        "--block", type=int, help="ranks that shard the DiT's weights; by default they are whole"
    )
    parser.add_argument("--model", choices=list(MODELS), default="dit", help="of sharded weights")
    options = parser.parse_args()
    if options.block:
        _sharded(options)
        return
    began, errors, failed = time.monotonic(), [], []
    counts = {"cascades": 0, "idle": 0, "sent": 0, "spread": 0, "here": 0, "groups": 0}
    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        for first in range(0, options.plans, AT_ONCE):
            count, out = min(AT_ONCE, options.plans - first), Path(folder) / f"{first}.json"
            ended = ranks.run(measure_plans, options.ranks, first, count, options.dtype, str(out))
            if any(ended.codes):
                failed += [error for error in ended.errors if error]
                continue
            told = json.loads(out.read_text())
            errors += told["errors"]
            for name in counts:
                counts[name] += told[name]
    print(f"| {options.ranks} | {options.dtype} | {len(errors)} | {max(errors):.1e} |", end="")
    print(f" {counts['cascades']:,} | {counts['idle'] / len(errors):.1f} |", end="")
    print(f" {counts['here']:,} / {counts['spread']:,} / {counts['sent']:,} |", end="")
    print(f" {counts['groups']:,} | {time.monotonic() - began:.0f} |")
    if failed:
        raise SystemExit("\n".join(failed))


def _sharded(options: argparse.Namespace) -> None:
    began, told, failed = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        for first in range(0, options.plans, AT_ONCE):
            count, out = min(AT_ONCE, options.plans - first), Path(folder) / f"{first}.json"
            arguments = options.model, options.block, first, count, str(out)
            ended = ranks.run(measure_sharded, options.ranks, *arguments)
            if any(ended.codes):
                failed += [error for error in ended.errors if error]
                continue
            told.append(json.loads(out.read_text()))
    if told:
        most = {name: max(one[name] for one in told) for name in ("error", "held", "gathered", "total")}
        print(
            f"| {options.model} | {options.ranks} | {options.block} | {options.plans} | {most['error']:.1e} |",
            end="",
        )
        print(f" {sum(one['dits'] for one in told)} | {sum(one['idle'] for one in told)} |", end="")
        print(f" {most['held'] / most['total']:.3f} | {most['gathered'] / most['total']:.3f} |", end="")
        print(f" {time.monotonic() - began:.0f} |")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
