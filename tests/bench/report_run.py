"""Numbers and page of a training run of a million steps: processor time, memory, and the floor of parsing its JSON.

python -m tests.bench.report_run [--steps 1000000] [--folder FOLDER]
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from reelweave.pipelines.report.run.numbers import read_runs
from reelweave.pipelines.report.run.page import addresses_from, run_page
from tests.pipelines.report.runs import recorded

_REPEATED = 5000  # steps that are written again and again


def main() -> None:
    """Write a long run, and print what its page costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the run is written (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        run = Path(folder)
        _write(run, options.steps)
        before_mib, began = _peak_mib(), time.process_time()
        numbers = read_runs([run])
        read_s = time.process_time() - began
        html, _ = run_page(numbers, addresses_from(run / "report", [run]))
        page_s, after_mib = time.process_time() - began - read_s, _peak_mib()
        began = time.process_time()
        for name in ("metrics.jsonl", "losses.jsonl"):
            with (run / name).open("rb") as lines:
                for line in lines:
                    json.loads(line)
        floor_s = time.process_time() - began
        size = sum(path.stat().st_size for path in run.iterdir()) / 1e6
    steps = numbers.runs[0].steps
    print(f"{steps.recorded:,} steps, {size:,.0f} MB, {steps.series.width:,} steps a point")
    print(f"numbers {read_s:.1f} s of processor time, page {page_s:.2f} s, {len(html) / 1e6:.1f} MB")
    print(f"json.loads of every line alone {floor_s:.1f} s")
    print(f"peak memory {before_mib:.0f} -> {after_mib:.0f} MiB")


def _write(run: Path, steps: int) -> None:
    recorded(run, _REPEATED)
    for name, every in (("metrics.jsonl", 1), ("losses.jsonl", 10)):
        tails = [line[line.index(",") :] for line in (run / name).read_text().splitlines()]
        with (run / name).open("w") as file:
            for number in range(steps // every):
                file.write(f'{{"step": {(number + 1) * every}{tails[number % len(tails)]}\n')


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
