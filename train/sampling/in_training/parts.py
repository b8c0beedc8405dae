"""A rank's part of weights, read from checkpoints and files of adapters."""

import json
from collections.abc import Mapping

import torch

from reelweave.train.checkpoint.pieces import piece_of
from reelweave.train.checkpoint.reading import Shapes
from reelweave.train.checkpoint.weights import Weights
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.lora import adapter_weights, check_adapters
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.mesh import Ranks


def to_sample(parallel: ParallelConfig) -> ParallelConfig:
    """Return a layout without what belongs to gradients."""
    return parallel.model_copy(
        update={"compile": False, "activation_checkpointing": "none", "schedule": "static"}
    )


def load_part_(saved: Weights, bundle: Bundle, ranks: Ranks) -> None:
    """Read this rank's part of a checkpoint's weights; a collective."""
    targets = {
        name: pieces.place_piece(pieces.local(parameter), parameter)
        for name, parameter in bundle.trained_weights().items()
    }
    saved.load_(targets, _shapes(targets, ranks))


@torch.no_grad()
def set_adapters_(dit: Denoiser, weights: dict[str, torch.Tensor]) -> None:
    """Set this rank's part of adapters; errors as in `reelweave.train.models.lora.load_adapters`."""
    check_adapters(dit, weights)
    for name, target in adapter_weights(dit).items():
        pieces.copy_(target, weights[name])


def _shapes(targets: Mapping[str, torch.Tensor], ranks: Ranks) -> Shapes:
    """Return dtype and shape of the tensors of all stages of a pipeline, whose ranks hold different ones."""
    local_shapes = [
        (name, piece.dtype, piece.shape)
        for name, tensor in targets.items()
        if 0 not in (piece := piece_of("model", name, tensor)).shape
    ]
    rank_texts = ranks.along("pp").gather_text(json.dumps(local_shapes))
    return {name: (dtype, tuple(shape)) for text in rank_texts for name, dtype, shape in json.loads(text)}
