"""Models that sample in a layout of training, of which every rank holds and reads its part of the weights."""

from dataclasses import replace
from pathlib import Path

from reelweave.loader.storage import StorageConfig
from reelweave.train.checkpoint.weights import Group
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.published.experts import ALL_TIMES
from reelweave.train.parallel.layout import layout_of, place
from reelweave.train.parallel.layouts.fsdp import FSDP, refresh
from reelweave.train.parallel.mesh import MODEL, Ranks
from reelweave.train.sampling.decode.fitting import FittingDecoder
from reelweave.train.sampling.decode.tiled import TiledDecoder
from reelweave.train.sampling.experts.loading import with_experts
from reelweave.train.sampling.in_training.experts import expert_runners, other_expert_on, pair
from reelweave.train.sampling.in_training.groups import VideoGroups
from reelweave.train.sampling.in_training.parts import load_part_, set_adapters_, to_sample
from reelweave.train.sampling.layout import VideoLayout
from reelweave.train.sampling.trained.load import Trained, find_published, sampled_fps, trained_weights


def load_trained_on(
    world: World,
    named: str,
    parallel: ParallelConfig | None = None,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Trained:
    """Load the model of a checkpoint in a layout of training; a collective.

    Each rank reads its own part. The model of ours that a checkpoint of adapters needs is read whole into the memory of
    every rank's host first, as in training.

    Args:
        world: all ranks.
        named: run or checkpoint, as in `load_trained`.
        parallel: degrees; None: those of the run.
        weights: group of weights; None: the EMA if there is one.
        storage: configuration of the storage.

    Raises:
        UsageError: as in `load_trained`, or the degrees fit neither the ranks nor the model.
        RunError: the checkpoint is damaged.
    """
    saved, config = trained_weights(named, weights, storage, world)
    config = config.model_copy(update={"parallel": to_sample(parallel or config.parallel)})
    ranks = Ranks.of(config.parallel, world)
    complete = config.lora is None and not isinstance(config.model, DiffusersConfig)
    bundle = place(config.step, ranks, empty=complete).eval()
    load_part_(saved, bundle, ranks)
    refresh(bundle.dit, config.fp8)
    fps = sampled_fps(saved.state)
    return Trained(saved.uri, config, bundle, saved.state.step, saved.group, ranks=ranks, fps=fps)


def load_published_on(
    world: World, config: TrainConfig, parallel: ParallelConfig | None = None, lora: Path | None = None
) -> Trained:
    """Load a published model in a layout of training; a collective.

    Args:
        world: all ranks.
        config: configuration that names it.
        parallel: degrees; None: those of the configuration.
        lora: adapters, as in `load_published`.

    Raises:
        UsageError: as in `load_published`, or the degrees fit neither the ranks nor the model.
    """
    name, config, weights = find_published(config, lora, world)
    config = config.model_copy(update={"parallel": to_sample(parallel or config.parallel)})
    ranks = Ranks.of(config.parallel, world)
    bundle = place(config.step, ranks).eval()
    if weights is not None:
        set_adapters_(bundle.dit, weights)
    refresh(bundle.dit, config.fp8)
    return Trained(name, config, bundle, 0, "model", ranks=ranks)


def with_experts_on(
    trained: Trained,
    lora: Path | None = None,
    checkpoint: str | None = None,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Trained:
    """Add the expert for the other times, in the same layout; a collective.

    Arguments and errors as in `reelweave.train.sampling.experts.loading.with_experts`.
    """
    dit, ranks = trained.bundle.dit, trained.ranks
    assert ranks is not None, "see `load_trained_on`"
    if dit.times == ALL_TIMES:
        return with_experts(trained, ranks.world.device, lora, checkpoint)
    other, name = other_expert_on(trained.bundle, trained.config, ranks, lora, checkpoint, weights, storage)
    # Parts of weights are not moved; whole ones wait on the host if the device has no room for both.
    together = True if issubclass(layout_of(trained.config.parallel, ranks.mesh), FSDP) else None
    experts = pair(dit, other, trained.config.model, ranks.world.device, together)
    return replace(trained, checkpoint=trained.checkpoint + name, experts=experts)


def video_layout(trained: Trained, decode_bytes: int | None = None) -> tuple[VideoLayout, VideoGroups]:
    """Return how the ranks of such a model make a video, and which ranks do; a collective.

    Args:
        trained: the model.
        decode_bytes: memory that a decode may take; None: what is free on a GPU.
    """
    ranks = trained.ranks
    assert ranks is not None, "see `load_trained_on`"
    video = ranks.along(*MODEL)
    decoder = FittingDecoder(TiledDecoder(trained.bundle.tokenizer, video), decode_bytes)
    runner, low_noise = expert_runners(trained.bundle.dit, ranks, trained.experts)
    sharded = issubclass(layout_of(trained.config.parallel, ranks.mesh), FSDP)
    layout = VideoLayout(runner, decoder, video=video, low_noise=low_noise)
    return layout, VideoGroups.of_training(ranks, sharded)
