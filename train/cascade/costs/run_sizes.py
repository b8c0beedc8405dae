"""Sizes that a cost fit takes from the run's configuration: bytes, and the VAE's tile grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.profile_csv import Profile
from reelweave.train.cascade.problem import Module
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.parts import Dtype, StepConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.live_memory import LiveMemory
from reelweave.train.memory.shapes import StepShape
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.tile_grid import TileGrid
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.models.published.shared import DiffusersDenoiser
from reelweave.train.parallel.context.token_shard import Cuttable, cuttable
from reelweave.train.parallel.mesh import Mesh

_LATENTS = 3  # copies of latents: clean, noisy, and the target
_FAKE = torch.device("cpu")
_REHEARSED = 4  # shapes in a dry run: bytes are linear, and each takes a second


@dataclass(frozen=True)
class RunSizes:
    """Sizes on one GPU that holds all modules at all times.

    Attributes:
        states_bytes: weights of all modules, gradients, optimizer state and EMA, as far as this rank holds them.
        handed_token_bytes: bytes of a token's latents at the DiT's input.
        handed_sample_bytes: bytes of a caption's context at the DiT's input.
        exchanged_bytes: bytes per token that change ranks under Ulysses, forward, backward and recomputation; 0
            without context parallelism.
        grid: tile grid of the VAE.
        at_once: True if the VAE encodes all videos of a call together.
    """

    states_bytes: float
    handed_token_bytes: float
    handed_sample_bytes: float
    exchanged_bytes: float
    grid: TileGrid | None
    at_once: bool


def sizes_of(config: StepConfig, shape: StepShape, gpus: int) -> RunSizes:
    """Compute the sizes without a GPU.

    Args:
        config: configuration of the step; weights are sharded over blocks as its cascades do, or the optimizer's state
            over all ranks.
        shape: any shape of the run.
        gpus: number of ranks of the run.

    Raises:
        UsageError: the dry run fails (`reelweave.train.memory.dry_run.dry_run`).
    """
    config, ranks = _resident(config, gpus)
    bundle = Bundle(config.modules, meta=True, unread=True)
    [footprint] = dry_run(config, [shape], ranks, encoded=True)
    encoder = config.modules.tokenizer
    return RunSizes(
        states_bytes=footprint.state + _bytes(bundle.tokenizer),
        handed_token_bytes=_LATENTS * 4.0 * bundle.tokenizer.channels * math.prod(bundle.dit.patch),
        handed_sample_bytes=4.0 * (config.modules.text.max_text_tokens + 1) * bundle.text.width,
        exchanged_bytes=_exchanged_bytes(config.layout.parallel, config.layout.dtype, bundle),
        grid=bundle.tokenizer.tile_grid,
        at_once=not (isinstance(encoder, DiffusersVAEConfig) and (encoder.slicing or encoder.tiling)),
    )


def with_predicted_peaks(profile: Profile, config: StepConfig, gpus: int) -> Profile:
    """Return a profile with peaks of some shapes on one rank predicted by `reelweave.train.memory.dry_run`.

    Args:
        profile: profile of the run.
        config: configuration of the step.
        gpus: number of ranks of the run; where weights are sharded, peaks hold the layers that are gathered.
    """
    # A single rank would keep float32 weights with lower-precision copies.
    config, ranks = _resident(config, gpus if _block(config.layout.parallel, gpus) > 1 else 2)
    rows_n5 = np.column_stack([profile.batch * profile.length, profile.batch, profile.size_n3])
    distinct, place_n = np.unique(rows_n5, axis=0, return_inverse=True)
    chosen = np.unique(np.linspace(0, len(distinct) - 1, _REHEARSED).round().astype(np.int64))
    shapes = [
        StepShape(Bucket(*size), batch, tokens // batch) for tokens, batch, *size in distinct[chosen].tolist()
    ]
    # Cascades sum gradients behind all backwards.
    steps = dry_run(config, shapes, ranks=ranks, encoded=True, overlapped=False)
    peaks = {
        Module.DIT: [footprint.passes - footprint.state for footprint in steps],
        Module.VAE: _encoding_peaks(Bundle(config.modules, meta=True, unread=True).tokenizer, shapes),
    }
    peak_gib = np.full(len(rows_n5), np.nan)
    for module, of_shapes in peaks.items():
        of_distinct = np.full(len(distinct), np.nan)
        of_distinct[chosen] = np.array(of_shapes) / 2**30
        own_n = (profile.module == module) & (profile.degree == 1)
        peak_gib[own_n] = of_distinct[place_n.reshape(-1)][own_n]
    return replace(profile, peak_gib=peak_gib)


def with_gathered_layers(profile: Profile, config: StepConfig, gpus: int) -> Profile:
    """Return a profile whose measured peaks of DiTs hold gathered layers where weights are sharded.

    Args:
        profile: profile of the run, measured on whole weights.
        config: configuration of the step.
        gpus: number of ranks of the run.
    """
    if _block(config.layout.parallel, gpus) == 1:
        return profile
    shape = StepShape(Bucket(*profile.size_n3[0].tolist()), int(profile.batch[0]), int(profile.length[0]))
    sharded, ranks = _resident(config, gpus)
    # A profile is measured on whole weights, with the copies that autocast keeps.
    unsharded = config.with_parallel(sharded.layout.parallel.model_copy(update={"dp_shard": 1}))
    sharded_footprint, alone = (
        dry_run(run_config, [shape], size, encoded=True)[0]
        for run_config, size in ((sharded, ranks), (unsharded, 1))
    )
    more = (sharded_footprint.passes - sharded_footprint.state) - (alone.passes - alone.state)
    moved = np.maximum(0.0, profile.peak_gib + more / 2**30)
    peak_gib = np.where(profile.module == Module.DIT, moved, profile.peak_gib)
    return replace(profile, peak_gib=peak_gib)


def _block(parallel: ParallelConfig, gpus: int) -> int:
    """Return the number of ranks that shard the DiT's weights; 1 if they are whole."""
    if parallel.schedule == "static" or parallel.shard == "optimizer":
        return 1
    return Mesh.of(parallel, gpus).dp_shard


def _resident(config: StepConfig, gpus: int) -> tuple[StepConfig, int]:
    """Return a static layout that holds on a GPU what cascades hold there, and its number of ranks.

    Either one block of ranks shards the weights, as NestedFSDP does, or layers are whole and the optimizer's state is
    sharded. Every rank may encode, so that encoders are whole or on the host.
    """
    configured = config.layout.parallel
    block = _block(configured, gpus)
    parallel = ParallelConfig(
        dp_replicate=1,
        dp_shard="rest",
        shard="optimizer" if block == 1 else "weights",
        text_encoder="offload" if configured.text_encoder == "offload" else "whole",
        activation_checkpointing=configured.activation_checkpointing,
        activation_memory_budget=configured.activation_memory_budget,
        compile=configured.compile,
    )
    return config.with_parallel(parallel), gpus if block == 1 else block


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])


def _exchanged_bytes(parallel: ParallelConfig, dtype: Dtype, bundle: Bundle) -> float:
    """Return bytes per token: queries, keys, values and outputs per layer, and gradients of all four."""
    try:
        dit = cuttable(bundle.dit)
    except UsageError:
        return 0.0
    passes = 3 if parallel.activation_checkpointing in ("full", "offload") else 2
    value_bytes = 2 if dtype == "bfloat16" else 4
    return float(4 * passes * len(dit.repeated()) * _width(dit) * value_bytes)


def _width(dit: Cuttable) -> int:
    """Return the width of a token's queries."""
    if isinstance(dit, DiffusersDenoiser):
        return dit.full_heads * int(dit.model.config.attention_head_dim)
    return dit.config.hidden


def _encoding_peaks(tokenizer: Tokenizer, shapes: Sequence[StepShape]) -> list[int]:
    peaks = []
    with FakeTensorMode(allow_non_fake_inputs=True), LiveMemory() as memory, torch.no_grad():
        tokenizer = tokenizer.to_empty(device=_FAKE)
        for shape in shapes:
            bucket = shape.bucket
            before = memory.peak = memory.live
            tokenizer.encode(
                torch.empty((shape.batch, 3, bucket.frames, bucket.height, bucket.width), dtype=torch.uint8)
            )
            peaks.append(memory.peak - before)
    return peaks
