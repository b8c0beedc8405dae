"""Print everything a dataset knows of a clip, kept or rejected.

Caption and where it came from, span and source, scores with their thresholds, bucket, shard, duplicates; of a
rejected clip the reason.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from reelweave.loader.dataset import Row, open_dataset
from reelweave.loader.dataset.schema import WRITTEN
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.program import hint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave show`."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix")
    parser.add_argument(
        "clip",
        metavar="KEY|SOURCE",
        help="key of a clip or the beginning of one; or a source, by its path or file name",
    )
    parser.add_argument(
        "--at", type=float, metavar="SECONDS", help="only the span of a source that holds this second"
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the clip, or the spans of a source."""
    from reelweave.pipelines.report.buckets import kept_config
    from reelweave.pipelines.report.clips.facts import clip_facts, transitions_between
    from reelweave.pipelines.report.clips.lookup import find_rows

    if not options.clip:
        raise UsageError("give the KEY of a clip, its beginning, or a source")
    config = storage_config(options)
    dataset = open_dataset(options.dataset, config)
    rows = find_rows(dataset, options.clip, options.at)
    # One clip is shown with all that is known of it.
    if len(rows) == 1 or (rows[0]["key"] or "").startswith(options.clip):
        facts = clip_facts(dataset, rows[0], kept_config(dataset.storage, config).buckets)
        if options.json:
            print_json(facts)
        else:
            _print_clip(options.dataset, facts)
        return 0
    if options.json:
        print_json(
            {
                "dataset": dataset.storage.root,
                "source": rows[0]["source"],
                "spans": rows,
                "transitions": transitions_between(dataset, rows[0]["source"]),
            }
        )
        return 0
    # A source is shown by its spans.
    columns = ["key", "from s", "to s", "state", "stage", "reason"]
    cells = [
        [_text(row[name]) for name in ("key", "start_s", "end_s", "state", "stage", "reason")] for row in rows
    ]
    stdout().print(table(f"{len(rows)} spans of {rows[0]['source']}", columns, cells))
    _print_transitions(transitions_between(dataset, rows[0]["source"]))
    return 0


def _print_clip(dataset: str, facts: dict[str, Any]) -> None:
    out = stdout()
    out.print(table(facts["key"] or facts["source"], ["", ""], list(_lines(facts))))
    if scores := facts.get("scores"):
        columns = ["score", "value", "min", "max", ""]
        cells = [
            [
                score["name"],
                *(_text(score[name]) for name in ("value", "min", "max")),
                "rejected" if score["passes"] is False else "",
            ]
            for score in scores
        ]
        out.print(table("scores", columns, cells))
    if recipe := facts.get("recipe"):
        filters = ", ".join(recipe["rejected_by"])
        verdict = f"rejected by {filters}" if filters else "no score is beyond its filters"
        out.print(f"recipe {recipe['name']}: {verdict}", markup=False, soft_wrap=True)
    for title, rows in (
        ("left out in favour of it", facts.get("duplicates")),
        ("also found", facts.get("also")),
    ):
        if rows:
            names = ("key", "source", "start_s", "end_s", "state", "reason")
            cells = [[_text(row[name]) for name in names] for row in rows]
            out.print(table(title, ["key", "source", "from s", "to s", "state", "reason"], cells))
    _print_transitions(facts.get("transitions") or [])
    if facts.get("file"):
        out.print(f"its file: {hint('extract', dataset, facts['key'])}", markup=False, soft_wrap=True)


def _print_transitions(rows: list[Row]) -> None:
    """Print the changes at which shots end, and the likeliest one inside each clip."""
    if rows:
        names = ("start_s", "end_s", "kind", "probability", "decision")
        cells = [[_text(row[name]) for name in names] for row in rows]
        stdout().print(table("transitions", ["from s", "to s", "kind", "probability", "decision"], cells))


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact that is known."""
    # What became of it: also for spans that are no sample.
    yield "state", facts["state"] if facts["state"] == "kept" else f"{facts['state']} by {facts['stage']}"
    for name in ("reason", "duplicate_of", "caption"):
        if facts.get(name):
            yield name.replace("_", " "), str(facts[name])
    if "caption_source" in facts:
        yield "caption from", facts["caption_source"]
        yield from ((f"  {name}", value) for name, value in facts["caption_provenance"].items())
        yield "text tokens", f"{facts['text_tokens']:,}"
    for row in facts.get("captions") or ():
        name = f"caption {row['name']}" + f" {row['number'] + 1}" * (row["name"] == WRITTEN)
        yield name, row["caption"] if row["caption"] is not None else f"none: {row['reason']}"
    yield "source", facts["source"]
    if facts["start_s"] is not None:
        yield "span", f"{facts['start_s']:.3f} to {facts['end_s']:.3f} s"
    if "frames" not in facts:
        return
    # The clip itself, and what training makes of it.
    yield from ((f"  {name}", value) for name, value in facts["attributes"].items())
    shape = f"{facts['frames']} frames, {facts['width']} x {facts['height']}, {facts['fps']:.4g} fps"
    yield "clip", f"{shape}, {facts['duration_s']:.2f} s, audio: {facts['audio']}"
    if facts["mbps"] is not None:
        yield "size", f"{facts['file']['size'] / 1e6:,.3g} MB, {facts['mbps']:.3g} Mbit/s"
    if facts["pictures"]:
        yield "frames", facts["pictures"]
    bucket = facts["bucket"]
    if "none" in bucket:
        yield "bucket", f"none: {bucket['none']}"
    else:
        size = f"{bucket['frames']} x {bucket['height']} x {bucket['width']}"
        yield (
            "bucket",
            f"{size}, S = {bucket['tokens']:,} tokens, B = {bucket['batch']} by {bucket['bound']}",
        )
    yield "split, bin", f"{facts['split']}, {facts['bin']}"
    # Where its bytes lie.
    shard = facts["shard"]
    yield "shard", f"{shard['uri']}, bytes {shard['offset']} to {shard['offset'] + shard['size'] - 1}"
    yield "sha256", facts["sha256"]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
