"""Random plans of cascades on real ranks: gradients against one process, and that none hangs.

    python -m tests.bench.cascade_plans [--plans 1000] [--ranks 4] [--dtype float64]

Groups overlap, ranks idle, samples repeat, latents and contexts are made or stored; every plan must end, leave no
handoff behind, and give the gradients of one process within 1e-10 (float64) or 1e-5 (float32). Prints a row of
docs/benchmarks/cascade_plans.md.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.train.cascade.execution.programs import measure_plans
from tests.train.ranks import Ranks

AT_ONCE = 40  # plans of one world


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args()
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


if __name__ == "__main__":
    main()
