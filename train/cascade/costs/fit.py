"""Fit of a run's cost models to its profile, with errors on held-out shapes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import CostModel, HeldOutError, Links, TextCost
from reelweave.train.cascade.costs.fit_dit import fit_dit
from reelweave.train.cascade.costs.fit_lines import error_of, held_out, relative_fit
from reelweave.train.cascade.costs.fit_vae import fit_vae, vae_seconds
from reelweave.train.cascade.costs.profile_csv import Profile
from reelweave.train.cascade.costs.run_sizes import RunSizes
from reelweave.train.cascade.problem import Module

_LARGEST_MEAN = 0.10


@dataclass(frozen=True)
class FittedCosts:
    """Fitted cost model with caveats.

    Attributes:
        costs: fit to all rows; ``held_out`` comes from a fit to three quarters of the shapes.
        notes: warnings on unmeasured or inaccurate parts, in words.
    """

    costs: CostModel
    notes: tuple[str, ...]


def fit_costs(
    profile: Profile,
    name: str,
    sizes: RunSizes,
    links: Links,
    compression: Compression,
    text_tokens: int,
    max_gpus: int = 8,
) -> FittedCosts:
    """Fit each module to its rows.

    Args:
        profile: profile of the run.
        name: file name, for messages.
        sizes: sizes derived from the run's configuration.
        links: bandwidths; those not measured stay.
        compression: pixels per token, for traces that contain shapes.
        text_tokens: number of text tokens included in S.
        max_gpus: maximum number of GPUs for a VAE.

    Raises:
        UsageError: a module has too few shapes, or no peaks.
    """
    of = {module: profile.of(module) for module in Module}
    for module, rows in of.items():
        _check(module, rows, name)
    # Errors of each module with shapes that its fit has not seen.
    predicts: dict[Module, Callable[[Profile, Profile], Floats]] = {
        Module.TEXT: lambda train_rows, unseen: _text(train_rows, sizes).seconds(unseen.batch),
        Module.VAE: lambda train_rows, unseen: vae_seconds(fit_vae(train_rows, sizes, max_gpus), unseen),
        Module.DIT: lambda train_rows, unseen: fit_dit(train_rows, sizes, links).seconds(unseen),
    }
    errors = {
        module.name.lower(): _judge_fit(
            of[module], predicts[module], _keys(module, of[module]), f"{name}: the {module.name.lower()}"
        )
        for module in Module
    }
    dit = fit_dit(of[Module.DIT], sizes, links)
    costs = CostModel(
        dit=dit.cost,
        vae=fit_vae(of[Module.VAE], sizes, max_gpus),
        text=_text(of[Module.TEXT], sizes),
        links=dit.links,
        compression=compression,
        text_tokens=text_tokens,
        held_out=errors,
    )
    doubts = [
        f"the {which} is off by {error.mean:.0%} with shapes that a fit has not seen: measure more shapes, more"
        " --rounds, and on devices that do nothing else"
        for which, error in errors.items()
        if error.mean > _LARGEST_MEAN
    ]
    return FittedCosts(costs, (*dit.notes, *doubts))


def _check(module: Module, rows: Profile, name: str) -> None:
    which = module.name.lower()
    if not len(rows.seconds):
        raise UsageError(f"{name} has no rows of the {which}; make it with `reelweave bench cascades`")
    if module != Module.DIT and (rows.degree > 1).any():
        raise UsageError(f"{name}: the {which} is measured on one rank; leave out other degrees")
    if module != Module.TEXT and not np.isfinite(rows.peak_gib).any():
        raise UsageError(f"{name}: no row of the {which} has a peak_gib")


def _judge_fit(
    rows: Profile, predict: Callable[[Profile, Profile], Floats], keys_nK: IndexArray, what: str
) -> HeldOutError:
    out_n = held_out(keys_nK, what)
    unseen = rows.where(out_n)
    return error_of(predict(rows.where(~out_n), unseen), unseen.seconds)


def _keys(module: Module, rows: Profile) -> IndexArray:
    """Return held-out groups: a video's shape with all B and degrees; captions by microbatch."""
    shapes = [rows.length, *rows.size_n3.T]
    return np.stack([rows.batch, *shapes] if module == Module.TEXT else shapes, axis=1)


def _text(rows: Profile, sizes: RunSizes) -> TextCost:
    columns_n2 = np.stack([np.ones_like(rows.seconds), rows.batch.astype(float)], axis=1)
    fixed_s, sample_s = relative_fit(columns_n2, rows.seconds)
    peaks = rows.peak_gib[np.isfinite(rows.peak_gib)]
    beyond = float(peaks.max()) * 2**30 if len(peaks) else 0.0
    return TextCost(fixed_s=fixed_s, sample_s=sample_s, memory_bytes=sizes.states_bytes + beyond)
