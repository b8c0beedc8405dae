"""What Latent Parallelism costs in quality on a small trained model, and gains in time on slow links.

    python -m tests.bench.latent_parallel [--seconds 60] [--out table.json]

A DiT learns waves that move in one of four directions, with a random phase, for some seconds. Four gloo processes then
sample the same noise by the exact sampler and by each variant. PSNR and SSIM are to the exact sampler's pixels. Links
are slowed down by sleeping for every byte that a rank sends.
"""

import argparse
import json
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torchmetrics.functional.image import structural_similarity_index_measure

from reelweave.train.config.model import DiTConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import join
from reelweave.train.models.bundle import Bundle
from reelweave.train.objectives.level import pose
from reelweave.train.sampling.config import LatentParallelConfig, SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.latent_parallel.parts import divide
from reelweave.train.sampling.latent_parallel.rules import Rules
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from tests.train.clips import tiny_config
from tests.train.ranks import Ranks

FRAMES, SIDE, STEPS, RANKS = 17, 24, 12, 4
CAPTIONS = ["a wave going 0", "a wave going 1", "a wave going 2", "a wave going 3"]
OVERLAPS = (0.0, 0.2, 0.4, 0.5, 1.0)
AIDS = ("guidance_decay", "delta_smoothing", "rescale", "final_smoothing")
SLOW_BYTES_PER_S = 20e6


def run_config() -> TrainConfig:
    model = DiTConfig(hidden=64, heads=4, layers=3, patch=(1, 2, 2))
    return tiny_config().model_copy(update={"model": model})


def videos(number: int, generator: torch.Generator) -> tuple[torch.Tensor, list[str]]:
    """Draw clips of a moving wave in [-1, 1], [B, 3, T, H, W], and their captions."""
    ways = torch.randint(4, (number,), generator=generator)
    phase, angle = torch.rand(number, generator=generator) * 2 * math.pi, math.pi / 4 + ways * math.pi / 2
    t, y, x = torch.meshgrid(
        *(torch.arange(n, dtype=torch.float32) for n in (FRAMES, SIDE, SIDE)), indexing="ij"
    )
    direction = angle.cos()[:, None, None, None] * x + angle.sin()[:, None, None, None] * y
    wave = torch.sin(0.35 * direction - 0.5 * t + phase[:, None, None, None])
    return torch.stack([wave, -wave, wave.square()], dim=1), [CAPTIONS[way] for way in ways.tolist()]


def train(out: Path, seconds: float) -> dict[str, float]:
    torch.set_num_threads(1)
    config, generator = run_config(), torch.Generator().manual_seed(0)
    bundle = Bundle(config)
    optimizer = torch.optim.AdamW(bundle.parameters(), lr=3e-3)
    began, losses = time.process_time(), []
    while (spent := time.process_time() - began) < seconds:
        clips, captions = videos(8, generator)
        kept = torch.rand(len(captions), generator=generator) > 0.1
        captions = [text if keep else "" for text, keep in zip(captions, kept.tolist(), strict=True)]
        clean = bundle.tokenizer.encode(clips)
        times = torch.sigmoid(torch.randn(len(clean), generator=generator, dtype=torch.float64))
        level = bundle.objective.level(times).to(clean.device, clean.dtype)
        inputs, targets = pose(level, clean, torch.randn(clean.shape, generator=generator))
        loss = (bundle.dit(inputs, level.timestep_input, *bundle.text(captions)) - targets).square().mean()
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, len(losses) / 50) * max(0.02, 1 - spent / seconds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    torch.save(bundle.state_dict(), out)
    return {"steps": len(losses), "first": losses[0], "last": sum(losses[-20:]) / 20}


def variants() -> dict[str, dict[str, Any]]:
    """Options of each variant by name."""
    found: dict[str, dict[str, Any]] = {}
    for overlap in OVERLAPS:
        for rotate in (True, False):
            name = f"balanced, r {overlap}{'' if rotate else ', time only'}"
            found[name] = {"overlap": overlap, "rotate": rotate}
    found["balanced, r 0.4, exact first step"] = {"overlap": 0.4, "exact_steps": 1}
    found["balanced, r 0.4, 4 exact steps"] = {"overlap": 0.4, "exact_steps": 4}
    found["paper, r 0.5"] = {"mode": "paper"}
    found["unite"] = {"mode": "unite"}
    found["unite, no aids"] = {"mode": "unite"} | dict.fromkeys(AIDS, False)
    for name in AIDS:
        found[f"balanced, r 0.4, {name}"] = {"overlap": 0.4, name: True}
    return found


def seams(rules: Rules, size: tuple[int, ...]) -> torch.Tensor:
    """Return which latents touch a border of cores, bool [T, H, W]."""
    T, H, W = size
    grid, near = (T, H // 2, W // 2), torch.zeros(T, H, W, dtype=torch.bool)
    for number in range(rules.exact_steps, STEPS):
        division = divide(rules, grid, (1, 2, 2), RANKS, number, STEPS)
        assert division is not None
        for part in division.parts[:-1]:
            at = part.core[1] * division.patch
            near.movedim(division.axis, 0)[max(0, at - 1) : at + 1] = True
    return near


def sampled(bundle: Bundle, config: TrainConfig, layout: VideoLayout) -> dict[str, Any]:
    asked = SampleConfig(frames=FRAMES, height=SIDE, width=SIDE, steps=STEPS, guidance=2.0)
    sampler = VideoSampler(bundle, config, asked, layout)
    passes = sampler.encode(CAPTIONS)
    with count_sent_bytes() as sent:
        wall, cpu = time.perf_counter(), time.process_time()
        latents = sampler.denoise(passes, [11, 12, 13, 14])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    video = (bundle.tokenizer.decode(latents) + 1).clamp(0, 2) * 127.5
    return {"latents": latents, "video": video, "wall_s": wall, "cpu_s": cpu, "sent": sent.total}


def compared(found: dict[str, Any], exact: dict[str, Any], near: torch.Tensor) -> dict[str, float]:
    """PSNR and SSIM of the pixels, and the error of latents at borders over that inside."""
    error = (found["video"] - exact["video"]).square().mean()
    frames = [one["video"].transpose(1, 2).flatten(0, 1) for one in (found, exact)]
    difference = (found["latents"] - exact["latents"]).square()
    inside = difference[..., ~near]
    return {
        "psnr": float(10 * torch.log10(255**2 / error)),
        "ssim": float(structural_similarity_index_measure(*frames, data_range=255.0)),
        "seam": float((difference[..., near].mean() / inside.mean()).sqrt()) if inside.numel() else math.nan,
    }


def throttled(bundle: Bundle, config: TrainConfig, layout: VideoLayout) -> dict[str, float]:
    """Sample once on links of SLOW_BYTES_PER_S."""
    asked = SampleConfig(frames=FRAMES, height=SIDE, width=SIDE, steps=STEPS, guidance=2.0)
    sampler = VideoSampler(bundle, config, asked, layout)
    passes = sampler.encode(CAPTIONS)
    with count_sent_bytes() as sent:
        add, slept = sent.add, [0.0]

        def slow(group: str, kind: Any, number: int) -> None:
            add(group, kind, number)
            slept[0] += number / SLOW_BYTES_PER_S
            time.sleep(number / SLOW_BYTES_PER_S)

        sent.add = slow  # type: ignore[method-assign]
        wall, cpu = time.perf_counter(), time.process_time()
        sampler.denoise(passes, [11, 12, 13, 14])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"sent": sent.total, "links_s": slept[0], "cpu_s": cpu, "wall_s": wall}


def ranks_of_bench(folder: str) -> None:
    """All samples, on one of four ranks; rank 0 writes them down."""
    torch.set_num_threads(1)
    config = run_config()
    bundle = Bundle(config).eval()
    bundle.load_state_dict(torch.load(Path(folder) / "model.pt", weights_only=True))
    with join("cpu") as world, torch.no_grad():
        four = SamplingRanks(SamplingMesh(lp=RANKS), world)
        exact = sampled(bundle, config, VideoLayout.alone(bundle))
        rows: dict[str, dict[str, float]] = {}
        for name, options in variants().items():
            lp = LatentParallelConfig(**options)
            layout = build_layout(
                bundle, four, SampleLayoutConfig(prompts=1, lp=RANKS, vae_ranks=1, latent_parallel=lp)
            )
            found = sampled(bundle, config, layout)
            near = seams(Rules.of(lp), tuple(exact["latents"].shape[2:]))
            rows[name] = compared(found, exact, near) | {
                "cpu_share": found["cpu_s"] / exact["cpu_s"],
                "sent": found["sent"],
            }
        for name, strengths in {name: {name: True} for name in AIDS}.items():
            rules = Rules.of(LatentParallelConfig(**strengths))
            rows[f"no parts, {name}"] = compared(
                sampled(bundle, config, aided_alone(bundle, rules)), exact, near
            )
        links = {"one process": throttled(bundle, config, VideoLayout.alone(bundle))}
        for degrees in (
            {"ring": 4},
            {"ulysses": 4},
            {"cfg": 2, "ulysses": 2},
            {"lp": 4},
            {"cfg": 2, "lp": 2},
        ):
            for mode in ("balanced", "unite") if "lp" in degrees else ("",):
                lp = LatentParallelConfig(mode=mode) if mode else LatentParallelConfig()
                ranks = SamplingRanks(SamplingMesh(**degrees), world)
                layout = build_layout(
                    bundle, ranks, SampleLayoutConfig(prompts=1, vae_ranks=1, latent_parallel=lp, **degrees)
                )
                name = " x ".join(f"{key} {degree}" for key, degree in degrees.items())
                links[f"{name} {mode}".strip()] = throttled(bundle, config, layout)
    if world.rank == 0:
        (Path(folder) / "rows.json").write_text(json.dumps({"rows": rows, "links": links}))


def aided_alone(bundle: Bundle, rules: Rules) -> VideoLayout:
    """The exact sampler with aids, in one process."""
    from reelweave.train.distributed.world import World
    from reelweave.train.sampling.latent_parallel.predictor import LatentParallel

    alone = World(0, 1, torch.device("cpu"))
    return replace(
        VideoLayout.alone(bundle),
        divided=lambda guided: LatentParallel(guided, rules, bundle.dit.patch, alone, alone),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds of training")
    parser.add_argument("--out", type=Path, default=Path("latent_parallel.json"))
    options = parser.parse_args()
    from tests.bench.latent_parallel import ranks_of_bench  # ranks import it by this name

    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        trained = train(Path(folder) / "model.pt", options.seconds)
        print(trained, flush=True)
        ended = ranks.run(ranks_of_bench, RANKS, folder, deadline_s=3600.0)
        if ended.codes != [0] * RANKS:
            raise SystemExit("\n".join(ended.errors))
        found = json.loads((Path(folder) / "rows.json").read_text()) | {"trained": trained}
    options.out.write_text(json.dumps(found, indent=1))
    for name, row in found["rows"].items():
        print(f"| {name} | " + " | ".join(f"{value:.4g}" for value in row.values()) + " |")
    for name, row in found["links"].items():
        print(f"| {name} | " + " | ".join(f"{value:.4g}" for value in row.values()) + " |")


if __name__ == "__main__":
    main()
