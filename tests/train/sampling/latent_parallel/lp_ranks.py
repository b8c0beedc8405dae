"""Rank functions: Latent Parallelism on four ranks, against one process. Findings go to OUT/RANK.json."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from reelweave.loader.errors import RunError
from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import World, join
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.traffic import AttentionSize, ring_bytes
from reelweave.train.sampling.config import LatentParallelConfig, SampleConfig, SampleLayoutConfig
from reelweave.train.sampling.generate import VideoSampler
from reelweave.train.sampling.latent_parallel.parts import divide
from reelweave.train.sampling.latent_parallel.predictor import LatentParallel
from reelweave.train.sampling.latent_parallel.rules import Rules
from reelweave.train.sampling.latent_parallel.volumes import LatentRun, sent_bytes
from reelweave.train.sampling.latent_parallel.weights import blend_weights
from reelweave.train.sampling.layout import VideoLayout, build_layout
from reelweave.train.sampling.prediction.guidance import Guided
from reelweave.train.sampling.prediction.predictor import Predictor, SchedulePoint
from reelweave.train.sampling.ranks.agreement import fingerprint
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from tests.train.clips import tiny_config
from tests.train.references import divided
from tests.train.sampling.prediction.guidance_ranks import model

MODES = ("paper", "unite", "balanced")
BLENDS: dict[str, dict[str, object]] = {
    f"{mode}, overlap {overlap}": {"mode": mode, "overlap": overlap}
    for overlap in (0.0, 0.4)
    for mode in MODES
}
# 5 latent frames of 12 x 16: patches of 5 x 6 x 8.
SIZE = {"frames": 9, "height": 24, "width": 32}
LATENTS = (5, 12, 16)
CAPTIONS, SEEDS = ("a red wave", "a hill"), (3, 4)
AIDS_OFF = dict.fromkeys(("guidance_decay", "delta_smoothing", "rescale", "final_smoothing"), False)
COMBINED = {"cfg 2": {"cfg": 2}, "ring 2": {"ring": 2}, "ulysses 2": {"ulysses": 2}}
LOCAL = ("blocks.0.attend.out.weight", "blocks.1.attend.out.weight")


def config(steps: int = 4, guidance: float = 3.0, **size: int) -> SampleConfig:
    return SampleConfig(**SIZE | size, steps=steps, guidance=guidance)


def latents(bundle: Bundle, layout: VideoLayout, asked: SampleConfig) -> torch.Tensor:
    sampler = VideoSampler(bundle, tiny_config().losses, asked, layout)
    return sampler.denoise(sampler.encode(CAPTIONS), SEEDS)


def wrapped(bundle: Bundle, ranks: SamplingRanks, **options) -> VideoLayout:
    config_ = LatentParallelConfig(**options)
    return build_layout(
        bundle, ranks, SampleLayoutConfig(prompts=1, lp=ranks.mesh.lp, latent_parallel=config_)
    )


class Serial:
    """The same blend of parts in one process, one part after the other, from the pure functions alone."""

    def __init__(self, guided: Guided, rules: Rules, parts: int) -> None:
        self.guided, self.rules, self.parts = guided, rules, parts

    def __call__(self, x: torch.Tensor, point: SchedulePoint, window: Window | None = None) -> torch.Tensor:
        grid = (x.shape[2], x.shape[3] // 2, x.shape[4] // 2)
        division = divide(self.rules, grid, (1, 2, 2), self.parts, point.step, point.total)
        if division is None:
            return self.guided(x, point)
        total = torch.zeros_like(x)
        for number, part in enumerate(division.parts):
            if not part.length:
                continue
            at = [slice(None)] * 5
            at[2 + division.axis] = rows = division.rows(number)
            start = [0, 0, 0]
            start[division.axis] = rows.start
            found = self.guided(x[tuple(at)], point, Window(tuple(start), tuple(x.shape[2:])))
            weights = blend_weights(division, self.rules.ramp)[number, rows].to(x.dtype)
            shape = [1] * 5
            shape[2 + division.axis] = -1
            total[tuple(at)] += found * weights.view(shape)
        return total


def serial(bundle: Bundle, options: dict[str, object], parts: int) -> torch.Tensor:
    """Latents of one process that predicts the parts in turn."""
    rules = Rules.of(LatentParallelConfig(**options))
    layout = replace(VideoLayout.alone(bundle), divided=lambda guided: Serial(guided, rules, parts))
    return latents(bundle, layout, config())


def modes(bundle: Bundle, local: Bundle, ranks: SamplingRanks, blends: list[str]) -> dict[str, object]:
    """Each mode against one process; and where no token attends to another, against the exact sampler."""
    found: dict[str, object] = {}
    cases = {blend: BLENDS[blend] | AIDS_OFF for blend in blends}
    expected = divided(
        {name: partial(serial, bundle, options, 4) for name, options in cases.items()}
        | {
            "exact": lambda: latents(bundle, VideoLayout.alone(bundle), config()),
            "apart": lambda: latents(local, VideoLayout.alone(local), config()),
        }
    )
    for name, options in cases.items():
        got = latents(bundle, wrapped(bundle, ranks, **options), config())
        found[f"{name}: as in one process"] = float((got - expected[name]).abs().max())
        found[f"{name}: bits"] = int(fingerprint(got))
        found[f"{name}: not the exact sampler"] = float((got - expected["exact"]).abs().max())
        if options["overlap"]:
            got = latents(local, wrapped(local, ranks, **options), config())
            found[f"{name}: exact without attention"] = float((got - expected["apart"]).abs().max())
    return found


def steps(bundle: Bundle, ranks: SamplingRanks) -> dict[str, object]:
    """Few steps, few patches, and local positions, which rotary attention does not see."""
    found: dict[str, object] = {}
    exact = divided({"1 step": lambda: latents(bundle, VideoLayout.alone(bundle), config(1))})["1 step"]
    for mode in MODES:
        for n in (1, 2):
            got = latents(bundle, wrapped(bundle, ranks, mode=mode), config(n))
            found[f"{mode}, {n} steps"] = bool(got.isfinite().all()), int(fingerprint(got))
        # 3 latent frames for 4 groups; columns and rows have 4 and 5.
        few = config(4, frames=5, height=16, width=20)
        got = latents(bundle, wrapped(bundle, ranks, mode=mode, rescale=True), few)
        found[f"{mode}, few patches"] = bool(got.isfinite().all()), int(fingerprint(got))
    found["unite's first step"] = float(
        (latents(bundle, wrapped(bundle, ranks, mode="unite"), config(1)) - exact).abs().max()
    )
    there, here = (
        latents(bundle, wrapped(bundle, ranks, positions=positions), config())
        for positions in ("global", "local")
    )
    found["positions"] = float((there - here).abs().max())
    return found


def aids(local: Bundle, ranks: SamplingRanks) -> dict[str, object]:
    """Where no token attends to another, aids of parts are those of the whole video, but those of UNITE are not."""
    found: dict[str, object] = {}
    guidance = config(5, 6.0)

    def one_group(options: dict[str, object]) -> VideoLayout:
        rules = replace(Rules.of(LatentParallelConfig(**options)), exact_steps=0)
        world = World(0, 1, torch.device("cpu"))
        return replace(
            VideoLayout.alone(local),
            divided=lambda guided: LatentParallel(guided, rules, (1, 2, 2), world, world),
        )

    cases = {name: {"mode": "balanced", "overlap": 1.0, name: True} for name in AIDS_OFF}
    alone = {"one group": {"mode": "balanced"}} | cases
    whole = divided(
        {"plain": lambda: latents(local, VideoLayout.alone(local), guidance)}
        | {name: partial(latents, local, one_group(options), guidance) for name, options in alone.items()}
    )
    plain = whole["plain"]
    for name, options in cases.items():
        found[f"{name} changes the video"] = float((whole[name] - plain).abs().max())
        got = latents(local, wrapped(local, ranks, **options), guidance)
        found[f"{name} over ranks"] = float((got - whole[name]).abs().max())
    found["one group"] = float((whole["one group"] - plain).abs().max())
    found["one group: bits"] = bool(torch.equal(whole["one group"], plain))
    got = latents(local, wrapped(local, ranks, mode="unite"), guidance)
    found["unite: bits"] = int(fingerprint(got))
    return found


def sent(bundle: Bundle, ranks: SamplingRanks) -> dict[str, object]:
    """Bytes of a video beside those foretold; the comparison of latents sends 8 to each other rank."""
    found: dict[str, object] = {}
    points = 4  # each axis is divided
    bundle.dit.float()
    bundle.text.float()
    for mode in MODES:
        layout, counted = wrapped(bundle, ranks, mode=mode), [0]
        latents(bundle, replace(layout, divided=lambda guided: seen(layout, guided, counted)), config(points))  # noqa: B023
        run = LatentRun(24, LATENTS, (1, 2, 2), 4, points)
        rules = Rules.of(LatentParallelConfig(mode=mode))
        foretold = len(CAPTIONS) * sent_bytes(run, rules, ranks.along("lp").rank)
        exact = rules.exact_steps * 2 * _ring_bytes(bundle) if mode == "unite" else 0
        found[mode] = [counted[0] - points * 3 * 8, foretold + exact]
    bundle.dit.double()
    bundle.text.double()
    return found


def _ring_bytes(bundle: Bundle) -> int:
    """Bytes of one exact pass over a ring of four: blocks of keys and values, and the gathered prediction."""
    tokens, model = 5 * 6 * 8, bundle.dit.config
    size = AttentionSize(len(CAPTIONS), model.heads, model.hidden // model.heads, 4)
    blocks = model.layers * ring_bytes(size, Partition.even(tokens, 4), 0)[0]
    return blocks + 3 * tokens // 4 * len(CAPTIONS) * bundle.dit.patch_values * 4


def seen(layout: VideoLayout, guided: Guided, counted: list[int]) -> Predictor:
    assert layout.divided is not None
    predict = layout.divided(guided)

    def call(x: torch.Tensor, point: SchedulePoint, window: Window | None = None) -> torch.Tensor:
        with count_sent_bytes() as sent:
            found = predict(x, point, window)
        counted[0] += sent.total
        return found

    return call


def differing(bundle: Bundle, ranks: SamplingRanks) -> str:
    """One bit of one rank's latents differs after the second step."""
    layout = wrapped(bundle, ranks)

    def divided(inner: Guided) -> Predictor:
        assert layout.divided is not None
        predict: Callable[..., torch.Tensor] = layout.divided(inner)

        def call(x: torch.Tensor, point: SchedulePoint, window: Window | None = None) -> torch.Tensor:
            if point.step == 2 and ranks.world.rank == 2:
                x = x.clone()
                x.view(-1).view(torch.int64)[77] ^= 1
            return predict(x, point, window)

        return call

    try:
        latents(bundle, replace(layout, divided=divided), config())
    except RunError as error:
        return str(error)
    return ""


def agreement(got: torch.Tensor, expected: torch.Tensor) -> tuple[float, int]:
    """Return the largest difference, and a fingerprint of the bits."""
    return float((got - expected).abs().max()), int(fingerprint(got))


def compute(out: str, blends: list[str]) -> None:
    """All cases, but of blends those that are named."""
    torch.set_num_threads(1)
    bundle, local = model(), model()
    with torch.no_grad():
        for name, parameter in local.dit.named_parameters():
            if name in LOCAL:
                parameter.zero_()
    with join("cpu") as world:
        four = SamplingRanks(SamplingMesh(lp=4), world)
        found = {
            "modes": modes(bundle, local, four, blends),
            "steps": steps(bundle, four),
            "aids": aids(local, four),
            "sent": sent(bundle, four),
            "differing": differing(bundle, four),
        }
        cases = {mode: {"mode": mode, "overlap": 0.4} | AIDS_OFF for mode in ("balanced", "unite")}
        two = divided({mode: partial(serial, bundle, options, 2) for mode, options in cases.items()})
        for name, degrees in COMBINED.items():
            inner = SamplingRanks(SamplingMesh(lp=2, **degrees), world)
            found[name] = {
                mode: agreement(latents(bundle, wrapped(bundle, inner, **options), config()), two[mode])
                for mode, options in cases.items()
            }
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))
