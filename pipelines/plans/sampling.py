"""Layouts of sampling for `reelweave plan --sampling`: expected seconds, bytes and memory of each."""

import argparse
from pathlib import Path
from typing import Any

from reelweave.loader.errors import UsageError
from reelweave.pipelines.plans.advisor.advise import advise
from reelweave.pipelines.plans.advisor.published import MODELS
from reelweave.pipelines.plans.advisor.shapes import OneGpu, SamplingMachine, VideoModel
from reelweave.pipelines.plans.advisor.simulate import Expected
from reelweave.pipelines.terminal.arguments import did_you_mean
from reelweave.pipelines.terminal.console import print_json, stdout, table

_SHOWN = 12


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    """Add the options of `reelweave plan --sampling`."""
    parser.add_argument(
        "--frames", type=int, default=81, metavar="N", help="frames of the video (default: 81)"
    )
    parser.add_argument(
        "--size", default="720x1280", metavar="HEIGHTxWIDTH", help="size in pixels (default: 720x1280)"
    )
    parser.add_argument(
        "--sampling-steps", type=int, default=50, metavar="N", help="steps of the solver (default: 50)"
    )
    parser.add_argument(
        "--one-gpu-s", type=float, metavar="S", help="measured seconds of all steps on one GPU; needed"
    )
    parser.add_argument(
        "--decode-s", type=float, default=0.0, metavar="S", help="measured seconds of the decode (default: 0)"
    )
    parser.add_argument(
        "--gpus-per-node", type=int, default=8, metavar="N", help="GPUs that share fast links (default: 8)"
    )
    parser.add_argument(
        "--node-gb-per-s",
        type=float,
        default=450.0,
        metavar="GB",
        help="bandwidth of a GPU in a node, one way: NVLink 4 has 450, PCIe 4 has 25 (default: 450)",
    )
    parser.add_argument(
        "--network-gb-per-s",
        type=float,
        default=50.0,
        metavar="GB",
        help="bandwidth of a GPU to other nodes, one way (default: 50)",
    )
    parser.add_argument(
        "--gpu-gib", type=float, metavar="GIB", help="memory of a GPU; layouts that need more are left out"
    )
    parser.add_argument(
        "--cache-hits",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="also show layouts with a cache that answers this share of evaluations (default: 0)",
    )
    parser.add_argument("--exact", action="store_true", help="leave out Latent Parallelism")


def run(options: argparse.Namespace, gpus: int) -> int:
    """Print the layouts of some GPUs, the fastest first."""
    # Wrong values, each by its flag.
    if options.one_gpu_s is None:
        raise UsageError("--sampling needs --one-gpu-s S: what all steps take on one GPU, as measured")
    height, _, width = options.size.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) >= 16 and int(width) >= 16):
        raise UsageError(f"--size {options.size} is no HEIGHTxWIDTH; write it as --size 720x1280")
    if options.frames < 1 or options.sampling_steps < 1:
        raise UsageError("--frames and --sampling-steps must be at least 1")
    for flag in ("one_gpu_s", "node_gb_per_s", "network_gb_per_s", "gpus_per_node"):
        if not 0 < getattr(options, flag) < 1e9:
            raise UsageError(f"--{flag.replace('_', '-')} must be above 0")
    if gpus < 1 or options.decode_s < 0 or (options.gpu_gib is not None and options.gpu_gib <= 0):
        raise UsageError("--world-size must be at least 1, --decode-s at least 0, --gpu-gib above 0")
    # The video and the machine, and every layout of it by its expected seconds.
    name = options.what or "none"
    model = _model(name, options.frames, int(height), int(width), options.sampling_steps)
    machine = SamplingMachine(
        gpus=gpus,
        gpus_per_node=options.gpus_per_node,
        node_bytes_per_s=options.node_gb_per_s * 1e9,
        network_bytes_per_s=options.network_gb_per_s * 1e9,
        memory_bytes=None if options.gpu_gib is None else options.gpu_gib * 2**30,
    )
    one_gpu = OneGpu(denoise_s=options.one_gpu_s, decode_s=options.decode_s)
    if not 0 <= options.cache_hits < 1:
        raise UsageError("--cache-hits is a share of evaluations, from 0 to below 1")
    rows = advise(model, one_gpu, machine, not options.exact, options.cache_hits)
    if options.json:
        print_json({"model": name, "gpus": gpus, "layouts": [_row(row) for row in rows]})
        return 0
    columns = ["layout", "seconds", "on links", "GB sent", "GiB", "exact", "extra work", "attention left out"]
    cells = [
        [
            str(row.layout),
            round(row.seconds, 1),
            round(row.exchange_s, 1),
            round(row.sent_bytes / 1e9, 2),
            round(row.memory_bytes / 2**30, 1),
            "yes" if row.exact else "no",
            f"{row.extra_work:.0%}",
            f"{row.left_out_attention:.0%}",
        ]
        for row in rows[:_SHOWN]
    ]
    stdout().print(table(f"{name} on {gpus} GPUs, the fastest of {len(rows)} layouts", columns, cells))
    return 0


def _model(name: str, frames: int, height: int, width: int, steps: int) -> VideoModel:
    """Return the model that WHAT names: a published one, or that of a run's configuration or checkpoint."""
    if name in MODELS:
        return MODELS[name](frames, height, width, steps)
    if "://" not in name and not Path(name).exists():
        hint = did_you_mean(name, list(MODELS))
        raise UsageError(
            f"--sampling plans the models {', '.join(MODELS)}, or that of a run: its configuration or a checkpoint;"
            f" {name} is not among them{hint}"
        )
    from reelweave.pipelines.plans.advisor.of_run import model_of_run

    return model_of_run(name, (frames, height, width), steps)


def _row(row: Expected) -> dict[str, Any]:
    layout = row.layout
    return {
        "cfg": layout.cfg,
        "lp": layout.lp,
        "ring": layout.ring,
        "ulysses": layout.ulysses,
        "dsp": layout.dsp,
        "scalefusion": layout.scalefusion,
        "slicing": row.slicing,
        "cache_hits": layout.cache_hits,
        "vae_ranks": row.decode_ranks,
        "seconds": row.seconds,
        "denoise_s": row.denoise_s,
        "exchange_s": row.exchange_s,
        "decode_s": row.decode_s,
        "sent_bytes": row.sent_bytes,
        "memory_bytes": row.memory_bytes,
        "exact": row.exact,
        "extra_work": row.extra_work,
        "left_out_attention": row.left_out_attention,
    }
