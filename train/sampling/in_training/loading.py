"""Models that sample in a layout of training, of which every rank holds and reads its part of the weights."""

import json
from pathlib import Path

import torch

from loader.errors import UsageError
from loader.storage import StorageConfig
from train.checkpoint.pieces import piece_of
from train.checkpoint.reading import Shapes
from train.checkpoint.weights import Group
from train.config.model import DiffusersConfig
from train.config.parallel import ParallelConfig
from train.config.run import TrainConfig
from train.distributed.world import World
from train.models.bundle import Bundle
from train.models.lora import adapter_weights, check_adapters
from train.models.published.experts import ALL_TIMES
from train.parallel.layout import layout_of, place
from train.parallel.layouts import pieces
from train.parallel.layouts.fsdp import FSDP, refresh
from train.parallel.mesh import MODEL, Ranks
from train.sampling.decode.fitting import FittingDecoder
from train.sampling.decode.tiled import TiledDecoder
from train.sampling.in_training.groups import VideoGroups
from train.sampling.in_training.runner import training_runner
from train.sampling.layout import VideoLayout
from train.sampling.trained import Trained, published, trained_weights


def load_trained_on(
    world: World,
    named: str,
    parallel: ParallelConfig | None = None,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Trained:
    """Load the model of a checkpoint in a layout of training; a collective.

    A model of ours is read in parts, of which each rank keeps its own. A published one, which a checkpoint of adapters
    needs, is read whole into the memory of every rank's host first, as in training.

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
    saved, config = trained_weights(named, weights, storage)
    config = _to_sample(config, parallel)
    ranks = Ranks.of(config.parallel, world)
    complete = config.lora is None and not isinstance(config.model, DiffusersConfig)
    bundle = place(config, ranks, empty=complete).eval()
    _check_one_model(bundle)
    targets = {name: pieces.placed(pieces.local(whole), whole) for name, whole in bundle.trained().items()}
    saved.load_(targets, _shapes(targets, ranks))
    refresh(bundle.dit, config.fp8)
    return Trained(saved.uri, config, bundle, saved.state.step, saved.group, ranks=ranks)


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
    name, config, weights = published(config, lora)
    config = _to_sample(config, parallel)
    ranks = Ranks.of(config.parallel, world)
    bundle = place(config, ranks).eval()
    _check_one_model(bundle)
    if weights is not None:
        check_adapters(bundle.dit, weights)
        with torch.no_grad():
            for key, target in adapter_weights(bundle.dit).items():
                pieces.copy_(target, weights[key])
    refresh(bundle.dit, config.fp8)
    return Trained(name, config, bundle, 0, "model", ranks=ranks)


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
    runner = training_runner(trained.bundle.dit, ranks)
    sharded = layout_of(trained.config, ranks.mesh) is FSDP
    return VideoLayout(runner, decoder, video=video), VideoGroups.of_training(ranks, sharded)


def _to_sample(config: TrainConfig, parallel: ParallelConfig | None) -> TrainConfig:
    """Return a configuration without what belongs to gradients or to the time of steps."""
    forward = {"compile": False, "activation_checkpointing": "none", "schedule": "static"}
    parallel = (parallel or config.parallel).model_copy(update=forward)
    return config.model_copy(update={"parallel": parallel, "recalibrate": None})


def _check_one_model(bundle: Bundle) -> None:
    if bundle.dit.times != ALL_TIMES:
        raise UsageError(
            "--layout training divides one model, and this is one of two experts: take degrees such as ulysses=2"
        )


def _shapes(targets: dict[str, torch.Tensor], ranks: Ranks) -> Shapes:
    """Return dtype and shape of the tensors of all stages of a pipeline, whose ranks hold different ones."""
    own = [
        (name, piece.dtype, piece.shape)
        for name, tensor in targets.items()
        if 0 not in (piece := piece_of("model", name, tensor)).shape
    ]
    said = ranks.along("pp").gather_text(json.dumps(own))
    return {name: (dtype, tuple(shape)) for text in said for name, dtype, shape in json.loads(text)}
