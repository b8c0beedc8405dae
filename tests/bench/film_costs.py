"""What films cost by operation, from the notes of finished curations: docs/benchmarks/film_costs.md.

    python -m tests.bench.film_costs DATASET...

Prints a Markdown table: processor seconds for an hour of film, a column for each dataset, named by its folder.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reelweave.loader.dataset import open_dataset
from reelweave.pipelines.report.numbers.curation_run import RunFacts, run_facts


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+", metavar="DATASET")
    options = parser.parse_args(arguments)
    print(table({Path(uri).name: run_facts(open_dataset(uri)) for uri in options.datasets}))
    return 0


def table(facts_by_name: dict[str, RunFacts]) -> str:
    """Return the table; operations stand in the order of what they cost together."""
    columns = [
        {facts.operation: facts.core_s_per_hour or 0.0 for facts in run.operations}
        for run in facts_by_name.values()
    ]
    sums = {name: sum(column.get(name, 0.0) for column in columns) for column in columns for name in column}
    rows = [["core-seconds for an hour of film", *facts_by_name], ["---"] * (len(columns) + 1)]
    for name in sorted(sums, key=lambda operation: -sums[operation]):
        rows.append([name, *(f"{column.get(name, 0.0):.1f}" for column in columns)])
    rows.append(["**all**", *(f"**{sum(column.values()):.0f}**" for column in columns)])
    rows.append(["minutes of film", *(f"{run.film_s / 60:.1f}" for run in facts_by_name.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
