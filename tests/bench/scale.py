"""Time, bytes, requests and money at 100 PB of raw video, 1.1 billion samples and 4,096 GPUs, from measured rates.

    python -m tests.bench.scale [--set core_hour_price=0.03]... [--write docs/scale.md]

Every figure is a formula over inputs and earlier figures, printed beside it. Measured inputs quote their page.
"""

import argparse
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reelweave.train.config.model import PRESETS
from reelweave.train.measure.flops import sample_flops

_FUNCTIONS = {"ceil": math.ceil}
_LATENT_SIZE = (60, 104)
"""Rows and columns of the latents of 480 x 832."""


@dataclass(frozen=True)
class Input:
    """A number that is not computed from others here.

    Attributes:
        kind: "given", "measured", "computed", "price" or "assumed".
        page: page that has it, below docs/; empty unless it is measured or computed.
        quote: words of that page with the number.
    """

    name: str
    value: float
    unit: str
    kind: str
    about: str
    page: str = ""
    quote: str = ""


@dataclass(frozen=True)
class Figure:
    """A number that follows from others."""

    name: str
    formula: str
    unit: str
    about: str


def _flops(latent_frames: int) -> int:
    latent = (latent_frames, *_LATENT_SIZE)
    return sample_flops(PRESETS["wan-1.3b"], (16, 0), 4096, latent, 512).training


INPUTS = (
    Input("raw_bytes", 100e15, "B", "given", "raw video"),
    Input("images", 1e9, "", "given", "images in the dataset"),
    Input("clips", 100e6, "", "given", "clips in the dataset"),
    Input("gpus", 4096, "", "given", "GPUs"),
    Input("source_rate", 1e6, "B/s", "assumed", "raw video: 1080p of 8 Mbit/s"),
    Input("source_fps", 25, "/s", "assumed", "frames of raw video"),
    Input("clip_s", 5, "s", "assumed", "mean length of a clip"),
    Input("image_bytes", 150e3, "B", "assumed", "an image"),
    Input("cores", 20_000, "", "assumed", "processor cores for curation"),
    Input("driver_memory", 256e9, "B", "assumed", "memory of the machine that drives a curation"),
    Input("peak_flops", 989e12, "FLOP/s", "assumed", "dense bfloat16 of an H100 or H200, by its datasheet"),
    Input("mfu", 0.4, "share", "assumed", "of that; a single H200, without waiting for others, reaches 46 %"),
    Input("gpus_per_node", 8, "", "assumed", "GPUs of a node"),
    Input("microbatches", 4, "", "assumed", "microbatches of a rank in a step"),
    Input(
        "gpu_mtbf_h",
        50_000,
        "h",
        "assumed",
        "between failures of one GPU or what it hangs on, as large runs report",
    ),
    Input("checkpoint_every_s", 1800, "s", "assumed", "between checkpoints"),
    Input("restart_s", 600, "s", "assumed", "from a failure to the next step"),
    Input("core_hour_price", 0.04, "$", "price", "a core for an hour"),
    Input("gpu_hour_price", 2.5, "$", "price", "a GPU for an hour"),
    Input("gb_month_price", 0.023, "$", "price", "10^9 bytes in S3 for a month"),
    Input("get_price", 0.4e-6, "$", "price", "a GET"),
    Input("put_price", 5e-6, "$", "price", "a PUT"),
    Input(
        "curate_fps",
        41.8,
        "/s",
        "measured",
        "frames of 1080p that one core curates, without models",
        "benchmarks/memory.md",
        "180,000 | **786 MB** | 1,536 MB | 4,308 s | 41.8",
    ),
    Input(
        "clip_density",
        10,
        "",
        "measured",
        "bytes of a clip for each second and pixel^0.75; 4 to 20",
        "benchmarks/forecast.md",
        "4 to 20 bytes per second and pixel to the power 0.75",
    ),
    Input(
        "driver_s",
        27.4e-6,
        "s",
        "measured",
        "of the driver of a curation for each clip that was cut, tables alone",
        "benchmarks/curate_scale.md",
        "| all | 38.7 | 37.1 | 27.4 |",
    ),
    Input(
        "array_s",
        14e-6,
        "s",
        "measured",
        "to read its arrays",
        "benchmarks/curate_scale.md",
        "14 us for a clip to read",
    ),
    Input(
        "driver_bytes",
        233,
        "B",
        "measured",
        "of the driver's memory for each such clip, tables alone",
        "benchmarks/curate_scale.md",
        "233 B at the peak at 10^7",
    ),
    Input(
        "vector_bytes",
        32,
        "B",
        "computed",
        "for the search of near copies; the embeddings lie on the driver's disk",
        "benchmarks/dedup.md",
        "12, and 20 more for a while",
    ),
    Input(
        "jpeg_s",
        2 * 17 / 8000,
        "s",
        "measured",
        "of a core to index an image, decoding included",
        "index-tars.md",
        "8,000 JPEGs of 512x512 in 17 s",
    ),
    Input(
        "index_bytes",
        36,
        "B",
        "measured",
        "of the plan index for each sample",
        "benchmarks/plan_index.md",
        "36.00 | 36.00",
    ),
    Input(
        "open_s",
        4.2e-8,
        "s",
        "measured",
        "to open it and compare its checksum, for each sample",
        "benchmarks/plan_index.md",
        "| 4.2 s | 2.5 s |",
    ),
    Input(
        "epoch_s",
        14.8e-8,
        "s",
        "measured",
        "to plan an epoch, for each sample, B mostly 1",
        "benchmarks/plan_index.md",
        "**14.8 s** / 8.0 s",
    ),
    Input(
        "epoch_bytes",
        19.3,
        "B",
        "measured",
        "of memory meanwhile, at the peak",
        "benchmarks/plan_index.md",
        "**19.3** / 11.2",
    ),
    Input(
        "step_plan_s",
        35.8e-3,
        "s",
        "measured",
        "of each process to plan a step of 4,096 ranks x 4",
        "benchmarks/node_start.md",
        "| 0.43 | **35.8** | **97** |",
    ),
    Input(
        "requests_per_sample",
        1.0,
        "",
        "measured",
        "shuffled one by one",
        "benchmarks/node_start.md",
        "| 1 | 0.996 | 1.01 | 1.06 | 1.000 |",
    ),
    Input(
        "sent_share",
        1.014,
        "",
        "measured",
        "bytes that S3 sends over those of clips, with 1 % of answers broken",
        "benchmarks/loader_s3.md",
        "worst round | 1.012 | 1.014",
    ),
    Input(
        "decode_s",
        0.110,
        "s",
        "measured",
        "of a core to read and decode a clip of 72 frames of 480p or 720p",
        "benchmarks/loader.md",
        "17.9, 17.5, 17.1 | 107, 108, 110",
    ),
    Input(
        "idle",
        0.0051,
        "share",
        "measured",
        "of the ranks' time, balanced, at 1,024 ranks; 4,096 were not measured",
        "benchmarks/balance.md",
        "0.16 / 0.25 / 0.51 %",
    ),
    Input("weights", 1_417_241_152, "", "computed", "weights of `wan-1.3b`", "models.md", "1,417,241,152"),
    Input(
        "clip_flops",
        _flops(21),
        "FLOP",
        "computed",
        "of a step for a clip of 81 x 480 x 832",
        "benchmarks/train_step.md",
        "849 TFLOP a step",
    ),
    Input(
        "image_flops",
        _flops(1),
        "FLOP",
        "computed",
        "of a step for an image of 480 x 832",
        "benchmarks/train_step.md",
        "`train/measure/flops.py`",
    ),
)

FIGURES = {
    "Curation": (
        Figure("source_s", "raw_bytes / source_rate", "s", "of raw video"),
        Figure(
            "core_h",
            "source_s * source_fps / curate_fps / 3600",
            "core-hours",
            "to decode, find shots, cut, score and verify",
        ),
        Figure("curate_days", "core_h / cores / 24", "days", "on all cores"),
        Figure("curate_price", "core_h * core_hour_price", "$", "for them"),
        Figure("reads", "raw_bytes / (8 * 2**20)", "GETs", "in blocks of 8 MiB"),
        Figure("reads_price", "reads * get_price", "$", "for them"),
        Figure("clip_rate", "clip_density * (1920 * 1080) ** 0.75", "B/s", "of clips of 1080p"),
        Figure("cut_clips", "source_s / clip_s", "", "clips cut, kept or not"),
        Figure("kept_share", "clips / cut_clips", "share", "of them that the dataset has room for"),
        Figure(
            "staged_bytes",
            "source_s * clip_rate",
            "B",
            "of clips in the ledger, if rejected ones are kept (`run.keep_rejected`)",
        ),
        Figure("staged_price", "staged_bytes / 1e9 * gb_month_price", "$", "a month for them"),
        Figure(
            "runs",
            "ceil(cut_clips * (driver_bytes + vector_bytes) / driver_memory)",
            "",
            "runs of curation, by the memory of a driver",
        ),
        Figure("run_bytes", "raw_bytes / runs", "B", "of raw video in each"),
        Figure(
            "driver_h",
            "cut_clips / runs * (driver_s + array_s) / 3600",
            "h",
            "of its driver before it publishes",
        ),
    ),
    "The dataset": (
        Figure("samples", "images + clips", "", "samples"),
        Figure("dataset_bytes", "clips * clip_s * clip_rate + images * image_bytes", "B", "of shards"),
        Figure("dataset_price", "dataset_bytes / 1e9 * gb_month_price", "$", "a month for them"),
        Figure(
            "index_core_h", "images * jpeg_s / 3600", "core-hours", "to index the images (`reelweave index`)"
        ),
        Figure("plan_bytes", "samples * index_bytes", "B", "of plan indexes, which every node maps"),
        Figure("open_all_s", "samples * open_s", "s", "to open them"),
        Figure("plan_epoch_s", "samples * epoch_s", "s", "to plan an epoch, once a node"),
        Figure("plan_epoch_bytes", "samples * epoch_bytes", "B", "of memory meanwhile"),
        Figure("nodes", "gpus / gpus_per_node", "", "nodes"),
        Figure("plan_sent", "plan_bytes * nodes", "B", "sent when a run begins"),
    ),
    "One epoch of training a Wan of 1.3 B weights": (
        Figure("epoch_flops", "clips * clip_flops + images * image_flops", "FLOP", "without recomputation"),
        Figure(
            "gpu_h",
            "epoch_flops / (peak_flops * mfu) / 3600 / (1 - idle)",
            "GPU-hours",
            "and waiting for each other",
        ),
        Figure("train_h", "gpu_h / gpus", "h", "on all GPUs"),
        Figure("train_price", "gpu_h * gpu_hour_price", "$", "for them"),
        Figure("samples_per_s", "samples / (train_h * 3600)", "/s", "samples on all ranks"),
        Figure("gets_per_s", "samples_per_s * requests_per_sample", "/s", "GETs on the bucket"),
        Figure("gets_price", "samples * requests_per_sample * get_price", "$", "for them"),
        Figure("sent_per_s", "dataset_bytes * sent_share / (train_h * 3600)", "B/s", "from the bucket"),
        Figure("sent_per_node", "sent_per_s / nodes", "B/s", "to each node"),
        Figure(
            "clip_decode_s",
            "decode_s * (81 * 1920 * 1080) / (72 * (854 * 480 + 1280 * 720) / 2)",
            "s",
            "of a core for a clip of 1080p, if it goes by pixels",
        ),
        Figure(
            "decode_cores",
            "(clips * clip_decode_s + images * jpeg_s) / (train_h * 3600) / nodes",
            "cores",
            "of each node that decode",
        ),
        Figure(
            "video_step_s",
            "microbatches * clip_flops / (peak_flops * mfu)",
            "s",
            "a step of clips alone, B = 1",
        ),
        Figure(
            "step_plan_share",
            "step_plan_s / video_step_s",
            "share",
            "of it to plan the next, meanwhile and on a processor",
        ),
        Figure(
            "checkpoint_bytes",
            "weights * (4 + 8 + 4)",
            "B",
            "a checkpoint: weights, moments and an average in float32",
        ),
        Figure("checkpoint_price", "(3 * gpus + 1) * put_price", "$", "for its PUTs"),
        Figure("mtbf_h", "gpu_mtbf_h / gpus", "h", "between failures of the run"),
        Figure(
            "lost_share",
            "(checkpoint_every_s / 2 + restart_s) / 3600 / mtbf_h",
            "share",
            "of the time lost to them",
        ),
    ),
}


def evaluated(changes: dict[str, float]) -> dict[str, float]:
    """Return all inputs and figures by name.

    Args:
        changes: other values of inputs.
    """
    values = {one.name: one.value for one in INPUTS}
    if unknown := changes.keys() - values.keys():
        raise SystemExit(f"no input is called {', '.join(sorted(unknown))}; there are {', '.join(values)}")
    values |= changes
    for figures in FIGURES.values():
        for figure in figures:
            values[figure.name] = eval(figure.formula, {"__builtins__": {}}, values | _FUNCTIONS)
    return values


def shown(value: float, unit: str) -> str:
    """Return a number with three digits and the prefix that people read."""
    if unit == "share":
        return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"
    if unit in ("B", "B/s", "FLOP", "FLOP/s"):
        names = [
            (1e24, "Y"),
            (1e21, "Z"),
            (1e18, "E"),
            (1e15, "P"),
            (1e12, "T"),
            (1e9, "G"),
            (1e6, "M"),
            (1e3, "k"),
        ]
        size, prefix = next(((size, name) for size, name in names if value >= size), (1, ""))
        return f"{_digits(value / size)} {prefix}{unit}"
    if unit == "s" and value < 1:
        return (
            f"{_digits(1000 * value)} ms"
            if value >= 1e-3
            else f"{_digits(1e6 * value)} us"
            if value >= 1e-6
            else f"{_digits(1e9 * value)} ns"
        )
    if unit == "$" and value < 0.01:
        return f"${1e6 * value:.1f} per million"
    words = next(
        (name for size, name in ((1e15, " x 10^15"), (1e9, " billion"), (1e6, " million")) if value >= size),
        "",
    )
    size = {" x 10^15": 1e15, " billion": 1e9, " million": 1e6, "": 1}[words]
    text = _digits(value / size) + words
    return f"${text}" if unit == "$" else f"{text} {unit}".replace(" /s", " a second").strip()


def _digits(value: float) -> str:
    if value == int(value) and value < 10_000:
        return f"{value:,.0f}"
    places = max(0, 2 - math.floor(math.log10(value))) if value else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else f"{float(f'{value:.3g}'):,.0f}"


def tables(values: dict[str, float]) -> dict[str, list[str]]:
    """Return the tables of the page by name, as lines."""
    inputs = ["| input | value | | from |", "|---|---|---|---|"]
    for one in INPUTS:
        source = f"{one.kind}: [{Path(one.page).stem}]({one.page})" if one.page else one.kind
        inputs.append(f"| `{one.name}` | {shown(values[one.name], one.unit)} | {one.about} | {source} |")
    found = {"Inputs": inputs}
    for title, figures in FIGURES.items():
        found[title] = ["| figure | value | | formula |", "|---|---|---|---|"]
        for one in figures:
            found[title].append(
                f"| `{one.name}` | **{shown(values[one.name], one.unit)}** | {one.about} | `{one.formula}` |"
            )
    return found


def written(page: str, made: dict[str, list[str]]) -> str:
    """Return a page with these tables in place of those between its marks."""
    for title, lines in made.items():
        mark = re.compile(rf"(<!-- {re.escape(title)} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = mark.subn(
            lambda match, lines=lines: match[1] + "\n".join(lines) + "\n" + match[2], page
        )
        if count != 1:
            raise SystemExit(f"the page has {count} places for {title}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another value of an input"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this page")
    options = parser.parse_args()
    made = tables(evaluated(dict(_changes(options.set))))
    if options.write:
        options.write.write_text(written(options.write.read_text(), made))
    for title, lines in made.items():
        print(f"## {title}", "", *lines, "", sep="\n")


def _changes(texts: list[str]) -> Iterator[tuple[str, float]]:
    for text in texts:
        name, _, value = text.partition("=")
        yield name, float(value)


if __name__ == "__main__":
    main()
