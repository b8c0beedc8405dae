"""Run a benchmark: shots (found transitions against those written down beside the videos)."""

import argparse
from pathlib import Path
from typing import Any

from loader.errors import UsageError
from pipelines.config import resolve
from pipelines.console import print_json, stderr, stdout, table

BENCHMARKS = ("shots",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("name", metavar="NAME", choices=BENCHMARKS, help=f"one of: {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--videos", type=Path, required=True, metavar="DIR", help="videos with a NAME.cuts.json beside them"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key of the detector"
    )


def run(options: argparse.Namespace) -> int:
    """Scores the shot detector on every video below the folder that has its transitions written down."""
    from curate.shot_score import score_folder, summary
    from curate.shots import ColourDetector, ColourDetectorConfig

    if not options.videos.is_dir():
        raise UsageError(
            f"{options.videos} is no folder; give one of videos with a NAME.cuts.json beside them"
        )
    config = resolve(ColourDetectorConfig, None, options.set)
    with stderr().status(f"detecting shots in {options.videos}"):
        result = summary(score_folder(options.videos, lambda: ColourDetector(config)))
    if options.json:
        print_json(result)
    else:
        _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    rows = [
        (scores["file"], kind, *(scores[kind][name] for name in ("found", "missed", "false", "f1")))
        for scores in [*result["files"], {"file": "all", **result}]
        for kind in ("hard", "gradual")
    ]
    stdout().print(table("shot transitions", ["file", "kind", "found", "missed", "false", "F1"], rows))
