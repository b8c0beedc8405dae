"""Start of a run with the weights of another."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from reelweave.loader.storage import StorageConfig
from reelweave.train.checkpoint.pieces import Tensors, local
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import MOST_ANCESTORS, Ancestor, BaseWeights, FrozenPart
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import World
from reelweave.train.loop.stages.fit import (
    Fit,
    different_meaning,
    fit_moments,
    fit_weights,
    merged_layers,
)
from reelweave.train.loop.stages.source import Source, describe
from reelweave.train.parallel.layouts import pieces


class Beginning(NamedTuple):
    """Beginning of a new run: the weights that it took over, and what it says of them.

    Attributes:
        ancestors: what its weights come from, newest first; empty: drawn by the seed, or published.
        lines: what was copied, extended and left, for people.
    """

    ancestors: tuple[Ancestor, ...] = ()
    lines: tuple[str, ...] = ()


def start_from(
    config: TrainConfig,
    checkpoints: Checkpoints,
    base: BaseWeights | None,
    parts: Mapping[str, FrozenPart],
    storage: StorageConfig,
    world: World,
) -> Beginning:
    """Give a new run the weights of another, and its optimizer the moments if asked; a collective.

    Args:
        config: the run.
        checkpoints: its tensors.
        base: weights under its adapters; None: it has none.
        parts: its frozen parts by key.
        storage: configuration of the source's storage.
        world: all ranks.

    Raises:
        UsageError: there is no source, or it does not fit.
        RunError: it is damaged.
    """
    asked = config.start_from
    if asked is None:
        return Beginning()
    described = on_first(
        world, lambda: describe(asked, config.model, config.lora is not None, storage).model_dump(mode="json")
    )
    source = Source.model_validate(described)
    fit = fit_weights(source, config, checkpoints.shapes["model"], base)
    rounded = ""
    if asked.optimizer == "kept":
        rounded = fit_moments(source, fit, checkpoints.shapes["optimizer"])
    groups = checkpoints.groups
    _load_(source.under or source, fit, groups["model"], storage, world, checkpoints)
    if source.under is not None:
        _merge_(source, groups["model"], storage, world, checkpoints)
    if asked.optimizer == "kept":
        source.read_("optimizer", groups["optimizer"], storage, world, checkpoints.together)
    for name, average in groups.get("ema", {}).items():
        local(average).copy_(local(groups["model"][name]))
    return Beginning(
        source.lineage[:MOST_ANCESTORS], _lines(source, fit, config, parts, rounded, "ema" in groups)
    )


@torch.no_grad()
def _load_(
    source: Source,
    fit: Fit,
    targets: Tensors,
    storage: StorageConfig,
    world: World,
    checkpoints: Checkpoints,
) -> None:
    """Copy the weights; those that a rule extends are read as a whole by each rank that has a part of them."""
    staged: Mapping[str, torch.Tensor] = {
        name: torch.empty(source.shapes[name][1], dtype=getattr(torch, source.shapes[name][0]))
        for name in fit.extended
        if name in targets
    }
    source.read_(source.group, {**targets, **staged}, storage, world, checkpoints.together)
    for name, stored in staged.items():
        pieces.copy_(targets[name], fit.extended[name](stored))
    if fit.scale != 1:
        for name, target in targets.items():
            if ".lora_B." in name:
                local(target).mul_(fit.scale)


@torch.no_grad()
def _merge_(
    source: Source, targets: Tensors, storage: StorageConfig, world: World, checkpoints: Checkpoints
) -> None:
    """Add alpha / rank times the product of each layer's matrices to its weight."""
    layers = merged_layers(source)
    matrices = {
        name: torch.empty(source.shapes[name][1])
        for weight, names in layers.items()
        if weight in targets
        for name in names
    }
    source.read_(source.group, matrices, storage, world, checkpoints.together)
    assert source.config is not None, "of a checkpoint"
    lora = source.config.lora
    scale = 1.0 if lora is None else lora.alpha / lora.rank
    for weight, (name_a, name_b) in layers.items():
        if weight in targets:
            change = torch.empty_like(targets[weight])
            pieces.copy_(change, matrices[name_b] @ matrices[name_a] * scale)
            local(targets[weight]).add_(local(change))


def _lines(
    source: Source,
    fit: Fit,
    config: TrainConfig,
    frozen: Mapping[str, FrozenPart],
    rounded: str,
    averages: bool,
) -> tuple[str, ...]:
    count = len((source.under or source).shapes) - len(fit.extended)
    parts = [f"{count} tensors copied"]
    if fit.extended:
        parts.append(f"{len(fit.extended)} extended ({fit.words}: {', '.join(sorted(fit.extended))})")
    elif fit.words:
        parts.append(fit.words)
    parts.append("none begin with other values")
    parts.append(f"optimizer {source.ancestor.optimizer}{f' ({rounded})' if rounded else ''}")
    if averages:
        parts.append("the average begins with these weights")
    lines = [f"begins at step 0 with {source.ancestor}: {', '.join(parts)}"]
    if changed := different_meaning(source, config, frozen):
        lines.append(f"other than there: {changed}")
    return tuple(lines)
