"""Expected seconds, bytes and memory of one layout.

    denoise = evaluations x [compute x share of the longest rank + exchanges]

Compute divides as its FLOPs do: those of linear layers with the tokens, those of attention with pairs of tokens.
Exchanges take bytes over the bandwidth that collectives reach, plus a latency each. All are waited for, those of a ring
too: it may hide them, but published rings are slower than Ulysses (diffusers on 4 H100: 3.8 against 7.5 steps/s). No
constant is fitted to a curve: what one GPU takes is measured, links are the vendor's times `efficiency`, decode and
text are measured stages. Passes of an ST-DiT by whole layers (DSP) or slices (ScaleFusion) are simulated on two
streams.
"""

from dataclasses import dataclass
from typing import Literal

from reelweave.pipelines.plans.advisor.shapes import OneGpu, SamplingMachine, VideoModel
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.traffic import AttentionSize, ring_bytes, ulysses_bytes
from reelweave.train.sampling.config import LatentParallelConfig
from reelweave.train.sampling.latent_parallel.rules import Rules
from reelweave.train.sampling.latent_parallel.volumes import LatentRun, Shares, sent_bytes, shares
from reelweave.train.sampling.scalefusion.jagged import TokenDivision
from reelweave.train.sampling.scalefusion.schedule import DSP, Slicing
from reelweave.train.sampling.scalefusion.simulate import LayerCosts, PassTime, choose, simulate

BFLOAT16 = 2
MOST_SLICES = 4
"""Most slices along either axis that are tried for ScaleFusion."""


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism of one video.

    Attributes:
        cfg: groups that share the passes of guidance.
        ulysses: ranks that exchange heads.
        ring: ranks that pass blocks.
        lp: groups that divide the latents; approximate if above 1.
        mode: mode of Latent Parallelism.
        scalefusion: ranks that exchange slices of an ST-DiT behind computation.
        dsp: ranks that exchange whole layers of an ST-DiT; `reelweave sample` calls them ring or ulysses.
        cache_hits: share of evaluations that a cache of blocks answers; approximate if above 0.
    """

    cfg: int = 1
    ulysses: int = 1
    ring: int = 1
    lp: int = 1
    mode: Literal["balanced", "paper", "unite"] = "balanced"
    scalefusion: int = 1
    dsp: int = 1
    cache_hits: float = 0.0

    @property
    def context(self) -> int:
        """Number of ranks that share a pass exactly."""
        return self.ulysses * self.ring * self.scalefusion * self.dsp

    @property
    def gpus(self) -> int:
        return self.cfg * self.context * self.lp

    def __str__(self) -> str:
        names = ("cfg", "lp", "ring", "ulysses", "dsp", "scalefusion")
        degrees = {name: getattr(self, name) for name in names}
        text = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
        cached = f" + cache, {self.cache_hits:.0%} hits" if self.cache_hits else ""
        return (text or "one GPU") + (f" ({self.mode})" if self.lp > 1 else "") + cached


@dataclass(frozen=True)
class Expected:
    """Expectation of one layout.

    Attributes:
        layout: the degrees.
        seconds: seconds of the whole video.
        denoise_s: seconds of all steps.
        exchange_s: part of it that waits for links.
        decode_s: seconds of the decode over the ranks.
        decode_ranks: number of ranks that decode.
        sent_bytes: bytes that a GPU sends in all steps.
        memory_bytes: weights, and activations of the largest pass.
        exact: the result is that of one GPU, to rounding.
        extra_work: work of linear layers over one GPU's, less 1.
        left_out_attention: share of attention that no rank computes.
        slicing: slices of ScaleFusion with the shortest simulated pass; None: another layout.
    """

    layout: Layout
    seconds: float
    denoise_s: float
    exchange_s: float
    decode_s: float
    decode_ranks: int
    sent_bytes: float
    memory_bytes: float
    exact: bool
    extra_work: float = 0.0
    left_out_attention: float = 0.0
    slicing: Slicing | None = None


def expect_layout(model: VideoModel, one_gpu: OneGpu, machine: SamplingMachine, layout: Layout) -> Expected:
    """Return the expectation of a layout.

    Args:
        model: model and video.
        one_gpu: seconds of one GPU.
        machine: GPUs and links.
        layout: degrees; ranks of Ulysses are nearest, then ring, groups of LP, groups of guidance.
    """
    # One evaluation on a rank: attention and the rest scale with the ranks of a sequence.
    work, latents = _divide_work(model, layout)
    context = layout.context
    passes = -(-model.passes // layout.cfg)
    evaluations = passes * model.steps * (1 - layout.cache_hits)
    whole_pass_s = one_gpu.denoise_s / (model.passes * model.steps)
    attention_s = whole_pass_s * model.attention_share * work.attention / context
    linear_s = whole_pass_s * (1 - model.attention_share) * work.linear / context

    # Exchanges of a sequence, of which ScaleFusion and DSP hide a part behind computing.
    tokens = max(context, round(model.tokens * work.linear))
    sent_u, sent_r = _context_bytes(model, layout, tokens)
    ulysses_s = _exchange(machine, layout.ulysses, sent_u, 2)
    ring_s = _exchange(machine, context, sent_r, layout.ring - 1)
    exposed_s, pass_s, slicing = model.layers * (ulysses_s + ring_s), attention_s + linear_s, None
    if layout.dsp * layout.scalefusion > 1:
        pass_time, slicing = _slice_pass(model, machine, layout, whole_pass_s * work.linear)
        exposed_s, pass_s = pass_time.exposed, pass_time.computing

    # Exchanges of a step: parts of latents, and the passes of guidance.
    part_bytes = latents / max(1, layout.lp) / model.steps if layout.lp > 1 else 0.0
    span = context * layout.lp
    step_s = _exchange(machine, span, part_bytes, 1) if layout.lp > 1 else 0.0
    gathered = model.latent_bytes * work.linear
    guided_s = _exchange(machine, layout.gpus, gathered, 1) if layout.cfg > 1 else 0.0
    exchange_s = evaluations * exposed_s + model.steps * (step_s + guided_s)
    denoise_s = evaluations * pass_s + exchange_s

    # Decode, and what one rank sends in all.
    decode_ranks = min(layout.gpus, machine.decode_ranks)
    decode_s = one_gpu.decode_s / decode_ranks
    sent = evaluations * model.layers * (sent_u + sent_r)
    sent += part_bytes * model.steps + (layout.cfg > 1) * gathered * model.steps
    return Expected(
        layout,
        denoise_s + decode_s + one_gpu.other_s,
        denoise_s,
        exchange_s,
        decode_s,
        decode_ranks,
        sent,
        _memory(model, tokens / context),
        layout.lp == 1 and not layout.cache_hits,
        work.total_linear - 1,
        max(0.0, 1 - work.total_attention),
        slicing,
    )


def _divide_work(model: VideoModel, layout: Layout) -> tuple[Shares, float]:
    """Return the shares of work of the largest part, and the bytes that one rank sends for latents in all steps."""
    if layout.lp == 1:
        return Shares(1.0, 1.0, 1.0, 1.0), 0.0
    run = LatentRun(1, model.grid, (1, 1, 1), layout.lp, model.steps)
    rules = Rules.of(LatentParallelConfig(mode=layout.mode, exact_steps=0))
    scale = model.latent_bytes / run.latent_bytes
    return shares(run, rules), layout.lp * scale * max(sent_bytes(run, rules, n) for n in range(layout.lp))


def _context_bytes(model: VideoModel, layout: Layout, tokens: int) -> tuple[float, float]:
    """Return the bytes that a rank sends for one layer and pass, by exchanges and around the ring."""
    width, heads = model.hidden // model.heads, model.heads
    if model.spatial_temporal:
        # Tokens change ranks once a layer; heads are exchanged for every second one, with four activations.
        ranks = layout.context
        activations = 2 if layout.ulysses > 1 else 1
        return activations * tokens * model.hidden * BFLOAT16 * (ranks - 1) / ranks**2, 0.0
    near = Partition.even(-(-tokens // layout.ring), layout.ulysses)
    over_heads = ulysses_bytes(AttentionSize(1, heads, width, BFLOAT16), near, 0)[0]
    blocks = Partition.even(tokens, layout.ring)
    size = AttentionSize(1, max(1, heads // layout.ulysses), width, BFLOAT16)
    return over_heads, ring_bytes(size, blocks, 0)[0]


def _slice_pass(
    model: VideoModel, machine: SamplingMachine, layout: Layout, whole_pass_s: float
) -> tuple[PassTime, Slicing | None]:
    """Return the simulated pass of an ST-DiT by whole layers or slices, and the slices."""
    frames, positions = model.grid[0], model.grid[1] * model.grid[2]
    ranks, pairs = layout.context, model.layers // 2
    attention_s = whole_pass_s * model.attention_share / (frames + positions)
    linear_s = whole_pass_s * (1 - model.attention_share)
    tokens = pairs * frames * positions
    costs = LayerCosts(
        {
            "spatial": (attention_s * positions + linear_s * model.spatial_share) / tokens,
            "temporal": (attention_s * frames + linear_s * (1 - model.spatial_share)) / tokens,
        },
        machine.launch_s,
        1 / machine.bytes_per_s(ranks),
        machine.latency_s,
        model.hidden * BFLOAT16,
        min(ranks, machine.gpus_per_node),
    )
    if layout.scalefusion == 1:
        return simulate(DSP, TokenDivision.of(frames, positions, DSP, ranks), pairs, costs), None
    slicing, slice_count = choose(frames, positions, ranks, pairs, costs, MOST_SLICES)
    return slice_count, slicing


def _exchange(machine: SamplingMachine, span: int, sent: float, collectives: int) -> float:
    if not sent:
        return 0.0
    return sent / machine.bytes_per_s(span) + collectives * machine.latency_s


def _memory(model: VideoModel, tokens: float) -> float:
    """Return bytes of weights and of one block's activations in bfloat16.

    Live at once: the residual stream, its modulated copy, queries, keys, values and output; or both sides of the MLP.
    """
    block = max(6 * model.hidden, 2 * model.hidden + 2 * model.inner)
    return BFLOAT16 * (model.parameters + tokens * block) + 4 * model.latent_bytes
