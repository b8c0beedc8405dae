"""Measure one part on this machine, each against a floor or a peer in the same run.

shots: precision of shot detection; needs --videos. curate: cost of curation; needs --videos. loader: reading and
decoding. kernels: fused operators on a GPU. lp: bytes and work of Latent Parallelism, computed. shapes, cascades:
microbatches of a training run; need --config, and write a CSV for `reelweave fit`.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelweave.loader.errors import UsageError
from reelweave.pipelines.terminal.arguments import add_config
from reelweave.pipelines.terminal.console import print_json, stderr, stdout, table
from reelweave.pipelines.terminal.files import output_target
from reelweave.pipelines.terminal.program import hint

if TYPE_CHECKING:
    from reelweave.pipelines.configuration.train_config import TrainRunConfig

BENCHMARKS = ("cascades", "curate", "kernels", "loader", "lp", "shapes", "shots")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave bench`."""
    parser.add_argument("name", metavar="NAME", choices=BENCHMARKS, help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--videos",
        type=Path,
        metavar="DIR",
        help="folder of videos; for shots with a NAME.cuts.json beside each",
    )
    add_config(
        parser, "shapes, cascades: YAML configuration of `reelweave train`", overrides="one key of --config"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="CSV",
        help="shapes, cascades: file of the results (default: shapes.csv, cascades.csv)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="cascades: repetitions, of which the median counts (default: 3)",
    )
    parser.add_argument(
        "--predict", action="store_true", help="shapes: predict memory without a GPU; measure nothing"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="shapes --predict: number of ranks of the run (default: 1)",
    )
    parser.add_argument(
        "--memory-gib", type=float, metavar="GIB", help="shapes --predict: usable memory of a GPU"
    )


def run(options: argparse.Namespace) -> int:
    """Run a benchmark and print a table, or everything as JSON."""
    measures = {
        "cascades": _cascades,
        "kernels": _kernels,
        "loader": _loader,
        "lp": _latent_parallel,
        "shapes": _shapes,
    }
    if options.name in measures:
        return measures[options.name](options)
    if options.videos is None:
        raise UsageError(f"the benchmark {options.name} needs --videos DIR")
    if not options.videos.is_dir():
        raise UsageError(f"{options.videos} is no folder; give one of videos")
    return _curate(options) if options.name == "curate" else _shots(options)


def _curate(options: argparse.Namespace) -> int:
    from reelweave.curate.config import CurateConfig
    from reelweave.pipelines.benchmarks.curate import bench_curate
    from reelweave.pipelines.configuration.config import resolve

    config = resolve(CurateConfig, None, options.set)
    with stderr().status(f"curating {options.videos} and measuring the floor"):
        result = bench_curate(str(options.videos), config)
    if options.json:
        print_json(result)
        return 0
    rows = [
        (file["source"].rsplit("/", 1)[-1], file["cpu_s"], file["floor_cpu_s"], file["ratio"])
        for file in [*result["files"], {"source": "all", **result}]
        if file["ratio"] is not None
    ]
    stdout().print(table("CPU seconds against the floor", ["source", "ours", "floor", "ratio"], rows))
    return 0


def _kernels(options: argparse.Namespace) -> int:
    from reelweave.pipelines.benchmarks.kernels import bench_kernels

    with stderr().status("measuring the fused operators and their peers"):
        result = bench_kernels()
    if options.json:
        print_json(result)
        return 0
    columns = ("operator", "case", "direction", "by", "milliseconds", "of_copy")
    rows = [[row[name] for name in columns] for row in result["rows"]]
    title = f"{result['device']}, torch {result['torch']}; a copy moves {result['copy_gb_per_s']:.0f} GB/s"
    stdout().print(table(title, ["operator", "N x D", "pass", "by", "ms", "of a copy"], rows))
    rows = [[goal[name] for name in ("aim", "least", "reached", "where")] for goal in result["goals"]]
    stdout().print(
        table("aims, of the provider that training chooses", ["aim", "least", "reached", "where"], rows)
    )
    stdout().print(table("host, a call and its gradient", ["", "us"], list(result["host_us"].items())))
    return 0


def _shapes(options: argparse.Namespace) -> int:
    from reelweave.pipelines.benchmarks.shapes import bench_shapes

    config = _run_config(options)
    if options.predict:
        return _predict(config, options)
    out = options.out or Path("shapes.csv")
    output_target(out, "--out")
    with stderr().status("making steps of every shape"):
        rows = bench_shapes(config, out)
    if rows is None:  # rank 0 prints
        return 0
    if options.json:
        print_json({"out": str(out), "shapes": [row._asdict() for row in rows]})
        return 0
    columns = ["B", "S", "frames", "height", "width", "step s", "peak GiB", "predicted"]
    cells = [["" if cell is None else cell for cell in row] for row in rows]
    stdout().print(table(f"{len(rows)} shapes, in {out}", columns, cells))
    stdout().print(f"next: {hint('fit', out)}", soft_wrap=True)
    return 0


def _run_config(options: argparse.Namespace) -> "TrainRunConfig":
    from reelweave.pipelines.configuration.model_rate import resolve_run

    if options.config is None:
        raise UsageError(
            f"the benchmark {options.name} needs --config FILE, the configuration of a training run"
        )
    return resolve_run(options.config, options.set)


def _cascades(options: argparse.Namespace) -> int:
    from reelweave.pipelines.benchmarks.cascades import bench_cascades

    if not 0 < options.rounds <= 1000:
        raise UsageError(f"--rounds is {options.rounds}; give 1 to 1000")
    config, out = _run_config(options), options.out or Path("cascades.csv")
    output_target(out, "--out")
    with stderr().status("running text encoder, VAE and DiT of every shape"):
        rows = bench_cascades(config, out, options.rounds)
    if rows is None:  # rank 0 prints
        return 0
    if options.json:
        print_json({"out": str(out), "cascades": [row._asdict() for row in rows]})
        return 0
    columns = ["module", "B", "frames", "height", "width", "S", "ranks", "seconds", "peak GiB"]
    cells = [["" if cell is None else cell for cell in row] for row in rows]
    stdout().print(table(f"{len(rows)} cascades, in {out}", columns, cells))
    changes = [word for change in options.set for word in ("--set", change)]
    gpus = os.environ.get("WORLD_SIZE", "1")
    following = hint("fit", "--cascades", out, "--config", options.config, *changes, "--gpus", gpus)
    stdout().print(f"next: {following} --out costs.json", soft_wrap=True)
    return 0


def _predict(config: "TrainRunConfig", options: argparse.Namespace) -> int:
    from reelweave.pipelines.benchmarks.shapes import communicators_gib, fitting_tokens, predict_shapes

    limit = options.memory_gib
    if options.ranks < 1 or (limit is not None and not 0 < limit < 1e6):
        raise UsageError("--ranks must be at least 1, and --memory-gib above 0")
    with stderr().status("dry run of a step of every shape"):
        rows = predict_shapes(config, options.ranks)
        outside_gib = communicators_gib(config, options.ranks)
    tokens = None
    if limit is not None:
        try:
            tokens = fitting_tokens(rows, limit, config.train.parallel)
        except UsageError as error:
            if all(row.peak_gib > limit for row in rows):
                raise
            # The memory of each shape is worth printing all the same.
            stderr().print(f"no memory_tokens: {error}", markup=False, soft_wrap=True)
    if options.json:
        print_json(
            {
                "ranks": options.ranks,
                "shapes": [row._asdict() for row in rows],
                "memory_tokens": tokens,
                "communicators_gib": outside_gib,
            }
        )
        return 0
    columns = ["B", "S", "frames", "height", "width", "state GiB", "kept GiB", "peak GiB"]
    fits = [[] if limit is None else ["yes" if row.peak_gib <= limit else "no"] for row in rows]
    title = f"{len(rows)} shapes, predicted for a rank of {options.ranks}"
    cells = [[*row, *fit] for row, fit in zip(rows, fits, strict=True)]
    stdout().print(table(title, columns if limit is None else [*columns, f"fits {limit:g}"], cells))
    if outside_gib:
        stdout().print(
            f"beside them: communicators, by estimate at most {outside_gib:.1f} GiB, which a GPU must have free",
            markup=False,
            soft_wrap=True,
        )
    if tokens is not None and tokens != config.stream.buckets.memory_tokens:
        stdout().print(
            "stream.buckets:", f"  memory_tokens: {tokens}", sep="\n", markup=False, soft_wrap=True
        )
    return 0


def _loader(options: argparse.Namespace) -> int:
    from reelweave.pipelines.benchmarks.decode import bench_decode
    from reelweave.pipelines.benchmarks.loader import bench_loader

    with stderr().status("reading samples"):
        result = bench_loader()
    with stderr().status("rendering clips and decoding them"):
        result |= bench_decode()
    if options.json:
        print_json(result)
        return 0
    raw = result["mb_per_s"]["raw"]
    rows = [(name, speed, speed / raw) for name, speed in result["mb_per_s"].items()]
    title = f"{result['samples']} samples of {result['sample_bytes'] // 1000} KB, warm, not decoded"
    stdout().print(table(title, ["reader", "MB/s", "of raw"], rows))
    encoded = [("one process", result["stream_mb_per_s"]), ("two workers", result["two_workers_mb_per_s"])]
    stdout().print(table("streamed, encoded", ["", "MB/s"], encoded))
    title = f"{result['clips']} clips to {result['shape']}, {result['threads']} threads"
    rows = [(name, rate, result["cpu_ms_per_clip"][name]) for name, rate in result["clips_per_s"].items()]
    stdout().print(table(title, ["decoded by", "clips/s", "CPU ms a clip"], rows))
    return 0


def _latent_parallel(options: argparse.Namespace) -> int:
    from reelweave.pipelines.benchmarks.latent_parallel import bench_latent_parallel

    result = bench_latent_parallel()
    if options.json:
        print_json(result)
        return 0
    for key, title in (
        ("table_1", "MiB a worker sends, arXiv 2512.07350v1, Table 1"),
        ("bytes", "GB a GPU sends for a video: Wan2.1-14B, 480p, 50 steps, 2 passes in bfloat16"),
        ("work", "work of the divided steps, in units of the whole video's: 81 frames, 480p"),
    ):
        rows = result[key]
        cells = [
            [round(cell, 3) if isinstance(cell, float) else cell for cell in row.values()] for row in rows
        ]
        stdout().print(table(title, list(rows[0]), cells))
    return 0


def _shots(options: argparse.Namespace) -> int:
    from reelweave.curate.shots import ShotConfig, make_detector
    from reelweave.curate.shots.score import score_folder, summary
    from reelweave.pipelines.configuration.config import resolve

    config = resolve(ShotConfig, None, options.set)
    with stderr().status(f"detecting shots in {options.videos}"):
        result = summary(score_folder(options.videos, lambda: make_detector(config, 25.0)))
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
