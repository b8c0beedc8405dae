"""Run a benchmark: shots (found transitions against known ones)."""

import argparse
from pathlib import Path

from loader.errors import UsageError

BENCHMARKS = ("shots",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("name", metavar="NAME", choices=BENCHMARKS, help=f"one of: {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--videos", type=Path, required=True, metavar="DIR", help="videos with a NAME.cuts.json beside each"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one detector key"
    )


def run(options: argparse.Namespace) -> int:
    """Scores the detector on every video of the folder that has its transitions written down."""
    if not options.videos.is_dir():
        raise UsageError(
            f"{options.videos} is no folder; give one of videos with a NAME.cuts.json beside each"
        )
    raise UsageError("x")
