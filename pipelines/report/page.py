"""HTML of a dataset's report: one page without network access; all outside text is escaped."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from loader.buckets.assignment import BucketConfig
from loader.dataset import Dataset
from loader.dataset.tars.media import FORMATS
from pipelines.report.curation import duplicate_groups, run_facts, run_notes, score_charts

if TYPE_CHECKING:
    from pipelines.report.buckets import ReportConfig

_THUMBNAIL_PX = 240
_MAX_CLIP_BYTES = 256 << 20  # larger clips are shown without a picture
_CLEARLY_OVER, _WORTH_ADVICE = 1.005, 1.2


def render(dataset: Dataset, statistics: dict[str, Any], config: "ReportConfig") -> str:
    """Render the page.

    Args:
        dataset: its clips are range-read for thumbnails only.
        statistics: result of ``pipelines.commands.look.report.statistics``.
        config: limits of what is shown.
    """
    environment = Environment(
        loader=PackageLoader("pipelines"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    totals = dataset.manifest.totals
    lost = _lost(dataset)
    shown = _evenly(dataset.index.num_rows, config.max_clips)
    buckets = config.buckets
    return environment.get_template("report.html").render(
        title="/".join(dataset.storage.root.rsplit("/", 2)[-2:]),
        subtitle=f"Reelweave dataset at {dataset.storage.root}, shards: {len(dataset.manifest.shards)},"
        f" format {dataset.manifest.format_version}",
        figures=[
            (f"{totals.sources:,}", "sources"),
            (f"{totals.samples:,}", "clips"),
            (_duration(totals.duration_s), "of clips"),
            (f"{totals.clip_bytes / 1e6:,.1f} MB", "encoded"),
            (f"{statistics['tokens']:,}", "tokens an epoch"),
            (f"{totals.accounting['failed']:,}", "failed"),
        ],
        stages=statistics["stages"],
        lost=lost[: config.max_lost],
        lost_more=max(0, len(lost) - config.max_lost),
        charts=[
            {"title": "Length of clips, seconds", "bars": _bars(statistics["duration_s"])},
            {"title": "Short side, pixels", "bars": _bars(statistics["short_side_px"])},
            {"title": "Tokens of a clip, S", "bars": _bars(statistics["clip_tokens"])},
        ],
        bucket_note=_bucket_note(buckets),
        buckets=[
            {
                **bucket,
                "bucket": f"{bucket['frames']} x {bucket['height']} x {bucket['width']}",
                "bound": bound_shown(bucket["bound"], bucket["over_limit"]),
            }
            for bucket in statistics["buckets"]
        ],
        oversized=oversized(statistics["buckets"]),
        unassigned=[(item["key"], item["reason"]) for item in statistics["unassigned"]],
        clips_note=""
        if len(shown) == dataset.index.num_rows
        else f"{len(shown)} of {dataset.index.num_rows} clips, evenly spread.",
        clips=[_clip(dataset, number) for number in shown],
        scores=score_charts(dataset),
        groups=[_group(dataset, group) for group in duplicate_groups(dataset)],
        run=run_facts(dataset),
        notes=run_notes(dataset),
    )


def bound_shown(bound: str, over_limit: float | None) -> str:
    """Return the limit that sets B, with the factor by which one sample exceeds the compute budget, if it does."""
    return bound if over_limit is None or over_limit < _CLEARLY_OVER else f"{bound} ({over_limit:.3g} x)"


def oversized(buckets: Sequence[Mapping[str, Any]]) -> str:
    """Return advice for buckets in which one sample far exceeds the compute budget, "" without any.

    Args:
        buckets: rows of the statistics.
    """
    over = [bucket for bucket in buckets if (bucket["over_limit"] or 0) >= _WORTH_ADVICE]
    if not over:
        return ""
    worst = max(over, key=lambda bucket: float(bucket["over_limit"]))
    share, most = sum(bucket["cost_share"] for bucket in over), worst["over_limit"]
    return (
        f"In {len(over)} of {len(buckets)} buckets, {share:.0%} of the cost, one sample alone exceeds the compute"
        f" budget: {worst['frames']} x {worst['height']} x {worst['width']} costs {most:.3g} times as much."
        f" Split its sequence over {math.ceil(most)} sequence-parallel ranks, raise the budget, or plan several"
        " microbatches per step (stream.microbatches), so that its rank gets fewer others."
    )


def _bucket_note(buckets: BucketConfig) -> str:
    if buckets.cost is None:
        bound = "⌊M_comp/S^p⌋"
        limit = "no bound" if buckets.compute_budget is None else f"{buckets.compute_budget:,.4g}"
        compute = f"M_comp = {limit}, p = {buckets.exponent:g}"
    else:
        bound = "samples that fit into the target step time"
        compute = (
            f"target = {'no bound' if buckets.target_step_s is None else f'{buckets.target_step_s:g} s'}"
        )
    per_token = buckets.compression
    return (
        f"B = max(1, min(⌊M_mem/S⌋, {bound})) with M_mem = {buckets.memory_tokens:,} tokens, {compute};"
        f" S counts {buckets.max_text_tokens} text tokens and one token per"
        f" {per_token.frames}x{per_token.height}x{per_token.width} pixels."
    )


def _lost(dataset: Dataset) -> list[dict[str, str]]:
    """Return rows that were not kept, failures first, without blended frames of transitions."""
    order = {"failed": 0, "duplicate": 1, "filtered": 2}
    rows = [
        row for row in dataset.accounting.to_pylist() if row["state"] in order and row["stage"] != "shots"
    ]
    return [
        {
            "state": row["state"],
            "source": row["source"],
            "start": _seconds(row["start_s"]),
            "end": _seconds(row["end_s"]),
            "reason": row["reason"],
        }
        for row in sorted(rows, key=lambda row: order[row["state"]])
    ]


def _clip(dataset: Dataset, number: int) -> dict[str, str]:
    row = dataset.index.slice(number, 1).to_pylist()[0]
    return {
        "key": row["key"],
        "caption": row["caption"],
        "source": row["source"].rsplit("/", 1)[-1],
        "span": f"{row['start_s']:.2f} to {row['end_s']:.2f} s",
        "shape": f"{row['frames']} frames, {row['width']} x {row['height']}, {row['fps']:.4g} fps",
        "image": _image(dataset, number, row["frames"]),
    }


def _image(dataset: Dataset, number: int, frames: int) -> str:
    """Return the thumbnail of a sample, "" if latents replace its clip."""
    if dataset.latents and dataset.media.place(number) is None:
        return ""
    place = dataset.media.place(number)
    if place is not None and place[2] > _MAX_CLIP_BYTES:
        return ""
    return _thumbnail(dataset.read_media(number), frames // 2)


def _group(dataset: Dataset, group: dict[str, Any]) -> dict[str, Any]:
    kept, number = group["kept"], group["row_number"]
    return {
        "key": group["key"],
        "source": kept["source"].rsplit("/", 1)[-1],
        "span": f"{kept['start_s']:.2f} to {kept['end_s']:.2f} s",
        "image": _image(dataset, number, dataset.row(number)["frames"]),
        "copies": [
            {
                "source": copy["source"].rsplit("/", 1)[-1],
                "span": f"{copy['start_s']:.2f} to {copy['end_s']:.2f} s",
                "reason": copy["reason"],
            }
            for copy in group["copies"]
        ],
    }


def _thumbnail(clip: bytes, middle: int) -> str:
    """Return a data URI of the clip's middle frame, "" if the clip cannot be decoded."""
    import av

    try:
        with av.open(
            io.BytesIO(clip), mode="r", metadata_errors="replace", options={"format_whitelist": FORMATS}
        ) as container:
            for number, frame in enumerate(container.decode(video=0)):
                if number == middle:
                    scale = _THUMBNAIL_PX / max(frame.width, frame.height)
                    small = frame.to_image(  # type: ignore[no-untyped-call]  # PyAV's
                        width=max(2, round(frame.width * scale)),
                        height=max(2, round(frame.height * scale)),
                        interpolation="AREA",
                    )
                    buffer = io.BytesIO()
                    small.save(buffer, "JPEG", quality=80)
                    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    except (av.error.FFmpegError, ValueError, IndexError, MemoryError):
        pass  # `reelweave verify` is what names damaged clips
    return ""


def _evenly(total: int, limit: int) -> list[int]:
    count = min(total, limit)
    return [place * total // count for place in range(count)]


def _bars(histogram: dict[str, list[float]]) -> list[dict[str, Any]]:
    edges, counts = histogram["edges"], histogram["counts"]
    most = max(counts, default=1)
    return [
        {"label": f"{_short(low)} to {_short(high)}", "count": count, "percent": round(100 * count / most)}
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]


def _short(value: float) -> str:
    return f"{value / 1000:,.4g}k" if value >= 10_000 else f"{value:,.4g}"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
