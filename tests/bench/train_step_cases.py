"""The kinds of steps that tests/bench/train_step.py measures, each in a process of its own."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from reelweave.loader.buckets.assignment import Bucket
from reelweave.train.config.model import PRESETS, DiTConfig
from reelweave.train.config.optimizer import Fp8Config
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.text import HashedTextConfig
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.distributed.world import World
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.shapes import StepShape, step_s
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import Ranks
from tests.bench.train_step_goals import PEER, PEER_FULL, Row

GIB = 2**30
LATENT = PatchTransformConfig(frames=4, height=2, width=2)
"""Makes latents of 48 channels of any video; the embedding is wider than for Wan's 16, by 0.01 % of the operations."""
WARM_UP, ROUNDS = 2, 5


class Case(NamedTuple):
    """A kind of step.

    Attributes:
        name: in words.
        checkpointing: of activations.
        compile: each block.
        operators: who computes the fused operators.
        fp8: recipe of matrix products.
    """

    name: str
    checkpointing: str = "none"
    compile: bool = False
    operators: str = "eager"
    fp8: str | None = None

    @property
    def predicted(self) -> bool:
        """Whether `reelweave.train.memory.dry_run` knows the memory: uncompiled, of operators that make nothing."""
        return not self.compile and self.operators != "eager"


CASES = (
    Case("compiled, nvrtc", compile=True, operators="nvrtc"),
    Case("nvrtc", operators="nvrtc"),
    Case(PEER),
    Case(PEER_FULL, "full"),
    Case("nvrtc, selective", "selective", operators="nvrtc"),
    Case("nvrtc, full", "full", operators="nvrtc"),
    Case("compiled, nvrtc, fp8 tensorwise", compile=True, operators="nvrtc", fp8="tensorwise"),
    Case("eager"),
    Case("compiled, nvrtc, selective", "selective", compile=True, operators="nvrtc"),
    Case("compiled, nvrtc, fp8 rowwise", compile=True, operators="nvrtc", fp8="rowwise"),
    Case("compiled, nvrtc, full", "full", compile=True, operators="nvrtc"),
)
"""The most telling first: for the last there may be no time."""
TINY = (
    Case("eager"),
    Case(PEER),
    Case(PEER_FULL, "full"),
    Case("selective", "selective"),
    Case("full", "full"),
    Case("fp8 tensorwise", fp8="tensorwise"),
)


class Size(NamedTuple):
    """What is trained on what.

    Attributes:
        model: the architecture.
        text: width and tokens of the text.
        bucket: of the clips that `LATENT` makes latents of.
        device: where.
    """

    model: DiTConfig
    text: tuple[int, int]
    bucket: Bucket
    device: str

    @property
    def latent(self) -> tuple[int, int, int]:
        """Frames, rows and columns of the latents."""
        frames, rows, columns = self.bucket.frames, self.bucket.height, self.bucket.width
        return 1 + (frames - 1) // LATENT.frames, rows // LATENT.height, columns // LATENT.width


WAN = Size(PRESETS["wan-1.3b"], (4096, 512), Bucket(81, 120, 208), "cuda")
"""81 frames of 480 x 832 through a VAE of 4 x 8 x 8: latents of 21 x 60 x 104, 32,760 tokens and 512 of text."""
SMALL = Size(DiTConfig(hidden=64, heads=4, layers=2), (16, 8), Bucket(5, 16, 16), "cpu")


def measured(case: Case, size: Size) -> Row:
    """Steps of a case: latents, losses, forward, backward, clipping and AdamW.

    Raises:
        UsageError: it cannot run here.
    """
    torch.manual_seed(0)
    return _peer(case, size) if case.name in (PEER, PEER_FULL) else _ours(case, size)


def _ours(case: Case, size: Size) -> Row:
    """Steps of ours as `Trainer` makes them."""
    on_gpu = size.device == "cuda"
    width, text_tokens = size.text
    config = TrainConfig(
        model=size.model,
        tokenizer=LATENT,
        # A word of start is added to each caption.
        text=HashedTextConfig(vocabulary=64, width=width, max_text_tokens=text_tokens - 1),
        dtype="bfloat16",
        device=size.device,
        fp8=Fp8Config(recipe=case.fp8, emulate=not on_gpu) if case.fp8 else None,
        parallel=ParallelConfig(activation_checkpointing=case.checkpointing, compile=case.compile),
    )
    shape = StepShape(size.bucket, 1, 0)
    predicted = dry_run(config.step, [shape])[0].peak / GIB if case.predicted else None
    world = World(0, 1, torch.device(size.device))
    layout = lay_out(config.step, Ranks.of(config.parallel, world))
    for weight in layout.weights.values():
        # A new model's gates are shut, and zeros run faster than numbers.
        torch.nn.init.normal_(weight, std=0.02)
    latent = size.latent
    flops = layout.bundle.dit.flops(latent, text_tokens).training
    tokens = layout.bundle.dit.tokens(latent) + text_tokens
    return _row(
        case.name,
        lambda number: step_s(layout, config.step, shape, world, number),
        size.device,
        tokens,
        flops,
        predicted,
    )


def _peer(case: Case, size: Size) -> Row:
    """Steps of diffusers' Wan of this shape, in the loop that its users write."""
    from diffusers import WanTransformer3DModel

    model, device = size.model, torch.device(size.device)
    shape = {
        "num_attention_heads": model.heads,
        "attention_head_dim": model.hidden // model.heads,
        "text_dim": size.text[0],
        "ffn_dim": model.inner,
        "num_layers": model.layers,
    }
    latent = size.latent

    def inputs(device: torch.device) -> tuple[torch.Tensor, ...]:
        return (
            torch.randn(1, 16, *latent, device=device),
            torch.full((1,), 500.0, device=device),
            torch.randn(1, size.text[1], size.text[0], device=device),
        )

    with torch.device("meta"):  # where attention is counted as the products that it is made of
        counted = WanTransformer3DModel(**shape)
    with FlopCounterMode(display=False) as counter:
        counted(*inputs(torch.device("meta")), return_dict=False)[0].sum().backward()
    with device:
        wan = WanTransformer3DModel(**shape)
    if case.checkpointing == "full":
        wan.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(wan.parameters(), lr=1e-4)

    def step(_number: int) -> float:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        _wait(device)
        began = time.perf_counter()
        clean, told, text = inputs(device)
        noise = torch.randn_like(clean)
        time_B = told / 1000
        with torch.autocast(device.type, torch.bfloat16):
            out = wan(torch.lerp(clean, noise, time_B), told, text, return_dict=False)[0]
        (out.float() - (noise - clean)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(wan.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        _wait(device)
        return time.perf_counter() - began

    tokens = latent[0] * (latent[1] // 2) * (latent[2] // 2) + size.text[1]
    return _row(case.name, step, size.device, tokens, counter.get_total_flops(), None)


def _row(
    name: str, step: Callable[[int], float], device: str, tokens: int, flops: int, predicted: float | None
) -> Row:
    times = [step(number) for number in range(WARM_UP + ROUNDS)][WARM_UP:]
    middle = statistics.median(times)
    peak = torch.cuda.max_memory_allocated() / GIB if device == "cuda" else None
    spread = (max(times) - min(times)) / middle
    return Row(name, middle, spread, tokens, flops / 1e12, peak, predicted)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
