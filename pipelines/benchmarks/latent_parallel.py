"""Bytes and work of Latent Parallelism for published shapes, computed from shapes alone."""

from dataclasses import asdict
from typing import Any

from reelweave.train.sampling.latent_parallel.rules import MODES
from reelweave.train.sampling.latent_parallel.volumes import (
    LatentRun,
    ModelShape,
    exact_bytes,
    paper_worker_bytes,
    sent_bytes,
    shares,
)

PUBLISHED = {
    (49, 1.0): (489.79, 430.88, 267.62),
    (49, 0.5): (322.71, 307.48, 184.08),
    (81, 1.0): (770.10, 703.07, 446.37),
    (81, 0.5): (507.25, 507.25, 314.94),
}
"""MiB that GPUs 2 to 4 send, by frames and overlap: arXiv 2512.07350v1, Table 1; 480p, 60 steps."""
WAN_14B = ModelShape(layers=40, hidden=5120, heads=40, inner=13824, text_tokens=512)
CHANNELS, PATCH, ROWS, COLUMNS = 16, (1, 2, 2), 60, 104


def bench_latent_parallel() -> dict[str, Any]:
    """Return the workers' bytes of Table 1, the bytes of Wan2.1-14B by every method, and shares of work by mode."""
    return {"table_1": _table_1(), "bytes": [_bytes(37), _bytes(81)], "work": _work()}


def _run(frames: int, parts: int = 4, steps: int = 50) -> LatentRun:
    return LatentRun(CHANNELS, (1 + (frames - 1) // 4, ROWS, COLUMNS), PATCH, parts, steps)


def _table_1() -> list[dict[str, Any]]:
    rows = []
    for (frames, overlap), published in PUBLISHED.items():
        sent = paper_worker_bytes(_run(frames, steps=60), overlap)
        for gpu, (mib, bytes_) in enumerate(zip(published, sent, strict=True), 2):
            rows.append(
                {
                    "frames": frames,
                    "overlap": overlap,
                    "gpu": gpu,
                    "published_mib": mib,
                    "mib": bytes_ / 2**20,
                }
            )
    return rows


def _bytes(frames: int) -> dict[str, Any]:
    """Return gigabytes that a GPU sends for a video of 480p on 4 GPUs, 50 steps, two passes in bfloat16."""
    run = _run(frames)
    step = exact_bytes(run, WAN_14B)
    row: dict[str, Any] = {"frames": frames, "gpus": run.parts, "steps": run.steps}
    row |= {name: run.steps * bytes_ / 1e9 for name, bytes_ in step.items()}
    for name, rules in MODES.items():
        row[name] = max(sent_bytes(run, rules, part) for part in range(run.parts)) / 1e9
    return row | {"unite's exact step": MODES["unite"].exact_steps * step["ring"] / 1e9}


def _work() -> list[dict[str, Any]]:
    return [
        {"mode": name, "gpus": parts, "even": 1 / parts, **asdict(shares(_run(81, parts), rules))}
        for name, rules in MODES.items()
        for parts in (2, 4, 8)
    ]
