"""Resume: compatibility of configurations, and random seeds per step."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ValidationError

from reelweave.loader.errors import StateError, UsageError
from reelweave.loader.settings import differences, first_difference
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import Ancestor, BaseWeights, CheckpointState
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import ALONE, World
from reelweave.train.sampling.trained.base import check_base
from reelweave.train.sampling.trained.frozen_parts import FrozenParts, check_parts
from reelweave.train.step.batches import BatchStream, dataset_names_of, plan_keys_of
from reelweave.train.step.learning_rate import learning_rate

FREE = ("log", "checkpoint", "lost_after_s", "collective_timeout_s", "parallel", "fp8")
"""Sections that may change when a run resumes, as may ``schedule.total_steps``."""

DATASETS = "datasets"
"""Key of a checkpoint's plans under which it names the datasets of its stream for people."""

_MOST_KEYS = 5
_SAME_RATE = 0.1
"""Change of the learning rate, as a share of the full one, that is not worth a word."""

_log = logging.getLogger(__name__)


class ExternalFiles(NamedTuple):
    """Files that a run depends on and that its checkpoints name by digest only.

    Attributes:
        base: weights under the adapters; None: there are none.
        parts: frozen parts by their key.
        ancestors: weights that the run began with, and what those began with, newest first.
    """

    base: BaseWeights | None = None
    parts: FrozenParts = MappingProxyType({})
    ancestors: tuple[Ancestor, ...] = ()


def resume(
    checkpoints: Checkpoints,
    stream: BatchStream,
    config: TrainConfig | VaeTrainConfig,
    outside: ExternalFiles = ExternalFiles(),  # noqa: B008 - a tuple
    world: World = ALONE,
) -> CheckpointState | None:
    """Restore tensors and stream from the latest checkpoint; return its state, None without one.

    Args:
        checkpoints: the run's checkpoints.
        stream: this rank's microbatches.
        config: configuration of the run.
        outside: what the checkpoint must have been trained with.
        world: ranks of the run, of which the first says what differs.

    Raises:
        UsageError: the checkpoint has another configuration, adapters of other base weights, or other frozen parts.
        RunError: the checkpoint is damaged.
    """
    state = checkpoints.latest()
    if state is None:
        return None
    parts = (state.frozen or {}).keys() & outside.parts.keys()
    if differs := difference(state.config, config, compared=parts):
        raise UsageError(
            f"{checkpoints.uri(state.step)} was made with another configuration: {differs};"
            f" {_way_on(config, checkpoints.uri(state.step))}"
        )
    on_first(world, lambda: _compare(checkpoints.uri(state.step), state, config, outside))
    checkpoints.load_(state)
    try:
        stream.load_state_dict(state.stream)
    except UsageError as error:
        raise _refusal(state, stream, checkpoints.uri(state.step), config, error) from error
    return state


def _way_on(config: TrainConfig | VaeTrainConfig, uri: str) -> str:
    """Return what to do where a checkpoint has another configuration."""
    if isinstance(config, VaeTrainConfig):
        return "resume with the old value, or train into another folder"
    return f"resume with the old value, or begin a next stage in another `out` with train.start_from={uri}"


def _compare(
    uri: str, state: CheckpointState, config: TrainConfig | VaeTrainConfig, outside: ExternalFiles
) -> None:
    check_base(uri, state.base, outside.base)
    check_parts(uri, state.frozen, outside.parts, config.checkpoint.changed_parts)
    _say_moved(uri, state.frozen or {}, outside.parts)
    _say_new_rate(uri, state, config)


def _say_moved(uri: str, saved: FrozenParts, now: FrozenParts) -> None:
    """Say which parts have another place than they had, with the same files."""
    for key in sorted(saved.keys() & now.keys()):
        if saved[key].name != now[key].name and saved[key].files == now[key].files:
            _log.warning(
                "%s: %s was %s and is %s now, with the same files", uri, key, saved[key].name, now[key].name
            )


def _say_new_rate(uri: str, state: CheckpointState, config: TrainConfig | VaeTrainConfig) -> None:
    """Say where the learning rate goes on from elsewhere, since another number of steps stretches its curve."""
    saved = type(config.schedule).model_validate(state.config["schedule"])
    if saved.total_steps == config.schedule.total_steps:
        return
    before = learning_rate(state.step - 1, config.optimizer, saved)
    after = learning_rate(state.step, config.optimizer, config.schedule)
    if abs(after - before) > _SAME_RATE * config.optimizer.lr:
        _log.warning(
            "%s: schedule.total_steps was %d and is %d now, which stretches the curve of the learning rate: it was %.3g"
            " in step %d and is %.3g in the next one",
            uri,
            saved.total_steps,
            config.schedule.total_steps,
            before,
            state.step,
            after,
        )


def _refusal(
    state: CheckpointState,
    stream: BatchStream,
    uri: str,
    config: TrainConfig | VaeTrainConfig,
    error: UsageError,
) -> UsageError:
    """Return the error of a stream that refuses a state, which knows digests alone, in words if the keys are known."""
    plan_keys = plan_keys_of(stream)
    if state.stream.get("selection") != stream.state_dict().get("selection"):
        return _from_state(error, uri, config)
    if state.stream.get("dataset") != stream.state_dict().get("dataset"):
        return _other_datasets(state, stream, uri, config, error)
    if plan_keys is None or state.stream.get("config") == stream.state_dict().get("config"):
        return _from_state(error, uri, config)
    if state.plans is None:
        return UsageError(f"{error}. {uri} is of an earlier version, which did not store the keys to compare")
    differ = [
        f"stream.{key} was {before!r} and is {now!r} now"
        for key, before, now in differences(state.plans, plan_keys)
        if not key.startswith(DATASETS)
    ]
    if not differ:
        return error
    return UsageError(
        f"{uri} was made with another stream: {'; '.join(differ[:_MOST_KEYS])}; {_way_on(config, uri)}"
    )


def _from_state(error: UsageError, uri: str, config: TrainConfig | VaeTrainConfig) -> UsageError:
    """Return the error of a stream that knows of its state alone, with what to do about a run."""
    if not isinstance(error, StateError):
        return UsageError(f"{uri}: {error}")
    return UsageError(f"{uri}: {error.cause}; {_way_on(config, uri)}")


def _other_datasets(
    state: CheckpointState,
    stream: BatchStream,
    uri: str,
    config: TrainConfig | VaeTrainConfig,
    error: UsageError,
) -> UsageError:
    """Return the error of a stream of other datasets in words, if the checkpoint has them."""
    was, now = (state.plans or {}).get(DATASETS), dataset_names_of(stream)
    if not was or not now:
        return error
    gone, new = (
        [dataset for dataset in some if dataset not in reference]
        for some, reference in ((was, now), (now, was))
    )
    if not gone and not new:
        return UsageError(
            f"{error}. {uri} names the same datasets ({'; '.join(was[:_MOST_KEYS])}): one was made anew, or is mixed"
            " otherwise"
        )
    return UsageError(
        f"{uri} was made with another dataset: it was {_list_names(gone)} and is {_list_names(new)} now. A run goes on"
        f" with later revisions of its datasets only: {_way_on(config, uri)}"
    )


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_KEYS} more" if len(names) > _MOST_KEYS else ""
    return f"{'; '.join(names[:_MOST_KEYS]) or 'in addition nothing'}{more}"


def difference(saved: dict[str, Any], config: BaseModel, compared: Iterable[str] = ()) -> str | None:
    """Describe the difference that prevents a resume; None without one.

    Args:
        saved: configuration in the checkpoint; keys added since have today's defaults.
        config: configuration of the run.
        compared: keys of parts, such as ``train.tokenizer.name``, whose files are compared: their place may change.
    """
    saved = {"denominator": "step"} | saved  # its default while checkpoints did not have the key
    # The comparison reports removed keys and values that are invalid now.
    with suppress(ValidationError):
        saved = type(config).model_validate(saved).model_dump(mode="json")
    fixed, fixed_now = _fixed_part(saved), _fixed_part(config.model_dump(mode="json"))
    for key in compared:
        for part in (fixed, fixed_now):
            _forget(part, key.split(".")[1:])
    return first_difference(fixed, fixed_now)


def _forget(config: Any, path: Sequence[str]) -> None:
    """Remove a key from nested sections, where they have it."""
    for name in path[:-1]:
        config = config.get(name) if isinstance(config, dict) else None
    if isinstance(config, dict):
        config.pop(path[-1], None)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch's generators before a step, so that no checkpoint needs their state.

    Noise and timesteps have seeds per sample; this one is for other draws, such as dropout. Ranks that share a
    sample draw the same, hence a data-parallel ``rank``.
    """
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))


def _fixed_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that must stay."""
    schedule = {name: value for name, value in config.get("schedule", {}).items() if name != "total_steps"}
    return {name: value for name, value in config.items() if name not in FREE} | {"schedule": schedule}
