"""Every exact layout of sampling, at every length of 1 to 4 times the ranks, for every model, against one process.

    python -m tests.bench.exact_layouts

The table is docs/benchmarks/exact_layouts.md.
"""

import json
import tempfile
from pathlib import Path

from tests.train.ranks import Ranks
from tests.train.sampling.context.context_ranks import (
    LAYOUTS,
    MEMBERS,
    MODELS,
    compute,
    lengths,
    publish_models,
)
from tests.train.sampling.context.test_context import check


def main() -> None:
    """Print a row for each model and number of ranks, with the largest errors; fail at the first that is too large."""
    with Ranks() as ranks, tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        publish_models(out)
        every = [(layout, name) for layout in LAYOUTS for name in MODELS]
        ended = ranks.run(compute, 4, folder, every, [], [], True, deadline_s=3600.0)
        if any(ended.codes):
            raise SystemExit(ended.errors[0])
        findings = [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]
    print("| model | ranks | layouts | predictions | refused | float64 | float32 |")
    print("|---|---|---|---|---|---|---|")
    for name in MODELS:
        for ranks_of in range(1, 5):
            alike = [layout for layout, members in MEMBERS.items() if len(members) == ranks_of]
            errors = [
                (length, error)
                for layout in alike
                for length, error in check(findings, layout, name, every=True).items()
            ]
            asked = sum(len(list(lengths(layout, name, True))) for layout in alike)
            worst = [max(error for length, error in errors if kind in length) for kind in ("64", "32")]
            print(
                f"| {name} | {ranks_of} | {len(alike)} | {len(errors)} | {asked - len(errors)}"
                f" | {worst[0]:.1e} | {worst[1]:.1e} |"
            )
    print(f"\n{len(LAYOUTS)} layouts: {', '.join(LAYOUTS)}")


if __name__ == "__main__":
    main()
