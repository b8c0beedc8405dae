"""Fit of stored weights into a new run: copied, extended by a rule, or refused."""

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from reelweave.loader.errors import UsageError
from reelweave.loader.settings import differences
from reelweave.train.checkpoint.reading import Shapes, describe_differences, difference_of
from reelweave.train.checkpoint.state import BaseWeights, FrozenPart
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.loop.stages.extension import EMBED, HEAD, Extend, extensions, shape_of
from reelweave.train.loop.stages.source import KEY, Source
from reelweave.train.models.encoders.tokenizer import channels_within

_MAY_DIFFER = ("patch", "absolute_positions")
"""Keys of a model of ours that leave the names of its weights as they are."""
_MEANING = ("model", "tokenizer", "text", "objective", "first_frames")
"""Sections that say what weights compute; a line tells how they differ."""
_MOST_KEYS = 8


class Fit(NamedTuple):
    """Change of the weights of a source into those of a run.

    Attributes:
        extended: function from a stored to a new weight, by name; all others are copied.
        scale: factor of the second matrices of adapters, which keeps what they compute.
        words: changes in words.
    """

    extended: Mapping[str, Extend]
    scale: float
    words: str


def fit_weights(source: Source, config: TrainConfig, wanted: Shapes, base: BaseWeights | None) -> Fit:
    """Return how the weights of a source become those of a run.

    Args:
        source: the source.
        config: the run.
        wanted: dtypes and shapes of its trained weights.
        base: weights under its adapters; None: it has none.

    Raises:
        UsageError: they do not fit; the message says what does not, and what would.
    """
    if source.under is not None:
        return _fit_merged(source, source.under, config, wanted)
    _check_architecture(source, config)
    _check_adapters(source, config, base)
    extended, words = _extended(source, config, wanted)
    _check_names(source, config, wanted, extended)
    scale = _scale(source, config)
    if scale != 1:
        words = f"matrices B of adapters times {scale:g} for another alpha"
    return Fit(extended, scale, words)


def _fit_merged(source: Source, under: Source, config: TrainConfig, wanted: Shapes) -> Fit:
    """Return how the weights under adapters become those of a run, with the adapters merged into them."""
    fit = fit_weights(under, config, wanted, None)
    layers = merged_layers(source)
    if clash := sorted(fit.extended.keys() & layers.keys()):
        raise UsageError(
            f"{KEY}: {source.ancestor.name} has adapters of {clash[0]}, which a rule extends: merge first, with the"
            " model as it is"
        )
    words = f"adapters of {len(layers)} layers merged"
    return fit._replace(words=f"{fit.words} and {words}" if fit.words else words)


def merged_layers(source: Source) -> dict[str, tuple[str, str]]:
    """Return the names of matrices A and B by the name of the weight that they are merged into."""
    return {
        f"{layer}.weight": (name, name.replace(".lora_A.", ".lora_B."))
        for name in source.shapes
        for layer, adapter, _ in [name.partition(".lora_A.")]
        if adapter
    }


def fit_moments(source: Source, fit: Fit, wanted: Shapes) -> str:
    """Check that the optimizer's state can be kept; return what is rounded, in words.

    Raises:
        UsageError: it cannot.
    """
    uri = source.ancestor.name
    if fit.words:
        raise UsageError(
            f"{KEY}.optimizer kept needs the weights as they are, and those of {uri} change ({fit.words}): take fresh"
        )
    different = _different(
        {name: ("", shape) for name, (_, shape) in source.moments.items()},
        {name: ("", shape) for name, (_, shape) in wanted.items()},
    )
    if different:
        raise UsageError(
            f"{KEY}.optimizer kept: the optimizer of {uri} has another state than this run's ({different}): set"
            " train.optimizer.moments as there, or take fresh"
        )
    rounded = {
        (source.moments[name][0], dtype)
        for name, (dtype, _) in wanted.items()
        if source.moments[name][0] != dtype
    }
    return ", ".join(f"moments of {before} become {now}" for before, now in sorted(rounded))


def different_meaning(source: Source, config: TrainConfig, parts: Mapping[str, FrozenPart]) -> str:
    """Return the keys, with both values, that make weights compute something else; "" without any.

    Args:
        source: the source.
        config: the run.
        parts: its frozen parts by key; of the source's, those whose files are others count, too.
    """
    if source.config is None:
        return ""
    before, now = source.config.model_dump(mode="json"), config.model_dump(mode="json")
    changes = [
        f"train.{key} was {was!r} and is {value!r}"
        for section in _MEANING
        for key, was, value in _section_differences(before.get(section), now.get(section), section)
    ]
    # Adapters compensate how the weights under them were rounded.
    was, is_now = (lora.base_dtype if lora else None for lora in (source.config.lora, config.lora))
    if source.adapted and was != is_now:
        changes.append(f"train.lora.base_dtype was {was!r} and is {is_now!r}")
    saved = source.frozen or {}
    changes += [
        f"the files of {key} are others"
        for key in sorted(saved.keys() & parts.keys())
        if saved[key].files != parts[key].files
    ]
    more = f" and {len(changes) - _MOST_KEYS} more" if len(changes) > _MOST_KEYS else ""
    return "; ".join(changes[:_MOST_KEYS]) + more


def _section_differences(before: Any, now: Any, section: str) -> list[tuple[str, Any, Any]]:
    """Return differences of a section; of another kind, whose keys are its own, that alone."""
    changes = list(differences(before, now, section))
    kinds = [change for change in changes if change[0] in (f"{section}.kind", "objective.name")]
    return kinds or changes


def _check_architecture(source: Source, config: TrainConfig) -> None:
    """Refuse weights of another kind of model before its tensors are compared."""
    uri, model = source.ancestor.name, config.model
    saved = source.config.model.model_dump(mode="json") if source.config else source.architecture or {}
    is_published = saved.get("kind") == "diffusers" or "_class_name" in saved
    if is_published != isinstance(model, DiffusersConfig):
        kinds = [saved.get("name") or saved.get("_class_name") or saved.get("kind"), model.kind]
        raise UsageError(
            f"{KEY}: {uri} holds weights of {kinds[0]}, and train.model is {kinds[1]}: a run begins with weights of"
            " the same kind of model"
        )
    if isinstance(model, DiffusersConfig):
        return
    changes = [
        change for change in differences(saved, model.model_dump(mode="json")) if change[0] not in _MAY_DIFFER
    ]
    # Another kind has keys of its own, of which none says what differs.
    for key, was, value in sorted(changes, key=lambda change: change[0] != "kind"):
        raise UsageError(
            f"{KEY}: {uri} is another model: its {key} is {was!r}, and train.model.{key} is {value!r}; only patch,"
            " channels and positions may change"
        )


def _check_adapters(source: Source, config: TrainConfig, base: BaseWeights | None) -> None:
    uri = source.ancestor.name
    adapted = source.adapted
    published = isinstance(config.model, DiffusersConfig)
    if adapted and config.lora is None:
        way = (
            f"merge them first with `reelweave export {shlex.quote(uri) if source.folder else 'RUN'} --merge --out"
            " FOLDER` and name FOLDER"
            if published
            else "name the run that trained them, which are merged then"
        )
        raise UsageError(
            f"{KEY}: {uri} holds adapters, and this run trains all weights: set train.lora, or {way}"
        )
    if config.lora and not adapted:
        run = shlex.quote(uri) if source.folder else "RUN"
        ways = {
            "ours": f"train.lora.checkpoint={uri}",
            "run": f"`reelweave export {run} --out FOLDER` and train.model.name=FOLDER",
            "folder": f"train.model.weights={uri}",
        }
        way = ways["ours" if not published else "run" if source.config else "folder"]
        raise UsageError(
            f"{KEY}: {uri} holds all weights, and this run trains adapters: for adapters on those weights use {way}"
            f" without {KEY}"
        )
    if base and source.base and base.sha256 != source.base.sha256:
        raise UsageError(
            f"{KEY}: the adapters of {uri} were trained on {source.base}, and the base weights of this run are {base}:"
            " begin with the same ones"
        )
    before = source.config.lora if source.config else None
    if config.lora and before and before.rank != config.lora.rank:
        raise UsageError(
            f"{KEY}: the adapters of {uri} have rank {before.rank}, and train.lora.rank is {config.lora.rank}: set it"
            f" to {before.rank}"
        )


def _scale(source: Source, config: TrainConfig) -> float:
    """Return the factor that keeps alpha / rank times the matrices of adapters what it was."""
    before = source.config.lora if source.config else None
    if config.lora is None or before is None:
        return 1.0
    return (before.alpha / before.rank) / (config.lora.alpha / config.lora.rank)


def _extended(source: Source, config: TrainConfig, wanted: Shapes) -> tuple[dict[str, Extend], str]:
    """Return the rules of weights that get another shape, and the changes in words."""
    ends = (EMBED, HEAD)
    if isinstance(config.model, DiffusersConfig) or config.lora:
        return {}, ""
    if not all(
        name in shapes and len(shapes[name][1]) == 2 for shapes in (source.shapes, wanted) for name in ends
    ):
        return {}, ""
    saved: Any = source.config.model.patch if source.config else (source.architecture or {}).get("patch")
    before = shape_of(source.shapes[EMBED][1][1], source.shapes[HEAD][1][0], tuple(saved))
    now = shape_of(wanted[EMBED][1][1], wanted[HEAD][1][0], config.model.patch)
    if before is None or now is None or before == now:
        return {}, ""
    try:
        return extensions(before, now, _channels(source, config) if before.channels < now.channels else None)
    except ValueError as error:
        raise UsageError(f"{KEY}: {source.ancestor.name} does not fit this run: {error}") from error


def _channels(source: Source, config: TrainConfig) -> list[int] | None:
    """Return the channel of the run's latents that each of the source's is; None: the first ones, in order.

    Raises:
        ValueError: the source does not say which coefficients of a patch its channels are.
    """
    now = config.tokenizer
    if not isinstance(now, PatchTransformConfig):
        return None
    if source.config is None:
        raise ValueError(
            "a folder does not say which coefficients of a patch its channels are; name the run, or its export to a"
            " .safetensors file"
        )
    before = source.config.tokenizer
    sizes = {"frames", "height", "width"}
    if not isinstance(before, PatchTransformConfig) or before.model_dump(include=sizes) != now.model_dump(
        include=sizes
    ):
        # Channels of another transform are none of these; the line on changed keys names it.
        return None
    return channels_within(before, now)


def _check_names(source: Source, config: TrainConfig, wanted: Shapes, extended: Collection[str]) -> None:
    """Refuse weights that are missing, unknown or misshapen, but for those that a rule extends; dtypes may differ."""
    wrong = {
        f"{name} ({dtype})"
        for name, (dtype, _) in source.shapes.items()
        if name in wanted and not getattr(torch, dtype).is_floating_point
    }
    if wrong:
        raise UsageError(
            f"{KEY}: the weights of {source.ancestor.name} are whole numbers, as quantized ones are: {min(wrong)}, of"
            f" {len(wrong):,}; take them unquantized"
        )
    stored, expected = (
        {name: ("", shape) for name, (_, shape) in shapes.items() if name not in extended}
        for shapes in (source.shapes, wanted)
    )
    if different := _different(stored, expected):
        raise UsageError(
            f"{KEY}: the weights of {source.ancestor.name} are not those of this run, and none begin with other values"
            f" in silence: {different}{_advice(source, config, stored, expected)}"
        )


def _advice(source: Source, config: TrainConfig, stored: Shapes, wanted: Shapes) -> str:
    """Return what helps with adapters of other layers, and with folders that lack the text encoder trained beside."""
    before = source.config.lora if source.config else None
    if before and config.lora and before.targets != config.lora.targets:
        return f". train.lora.targets was {list(before.targets)} there, and is {list(config.lora.targets)}"
    missing = wanted.keys() - stored.keys()
    if missing and all(name.startswith("text.") for name in missing):
        return ". A folder holds the transformer alone: name the run, or its export to a .safetensors file"
    return ""


def _different(stored: Shapes, wanted: Shapes) -> str | None:
    """Describe how tensors differ by name and shape; None if they do not."""

    def texts() -> Iterator[tuple[str, str]]:
        for name in stored.keys() | wanted.keys():
            if text := difference_of(name, stored.get(name), wanted.get(name)):
                yield name, text

    return describe_differences(dict(texts()))
