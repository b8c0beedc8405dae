"""Inspect the saved position of a stream, check it against a run, or compare two."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.strict_json import parse, unseal
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import StreamState, read_state
from reelweave.loader.storage import StorageConfig
from reelweave.loader.stream.state_diff import StateDiff, diff_states, part_values
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.arguments import add_config, add_global
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.train.checkpoint.folder import locate_checkpoint
from reelweave.train.checkpoint.names import STATE
from reelweave.train.checkpoint.state import Ancestor, ancestry

MAX_STATE_BYTES = 16 << 20  # of a checkpoint of many ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave state`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    file = "a state as JSON; a run, for its newest checkpoint; or a checkpoint"
    inspect = actions.add_parser(
        "inspect", help="print a state; with --config check whether a run can resume it"
    )
    inspect.add_argument("file", metavar="FILE", help=file)
    add_config(inspect, "YAML configuration of the run, as for train")
    inspect.add_argument("--dataset", metavar="URI", help="dataset in place of the configuration's")
    diff = actions.add_parser("diff", help="compare two states")
    for name in ("a", "b"):
        diff.add_argument(name, metavar=name.upper(), help=file)
    for action in (inspect, diff):
        add_storage_arguments(action)
        action.set_defaults(parser=action)
        add_global(action.add_argument_group("options of every command"))


def run(options: argparse.Namespace) -> int:
    """Print the states; return 1 if one was checked against a run and does not fit."""
    storage = storage_config(options)
    if options.action == "diff":
        first, other = _read(options.a, storage).state, _read(options.b, storage).state
        difference = diff_states(first, other)
        _show_diff(difference, options.json)
        return 0
    if options.config is None and (options.dataset or options.set):
        raise UsageError("--dataset and --set need --config FILE: how the dataset is streamed")
    file, state, ancestors = _read(options.file, storage)
    described = describe(state) | (_fit(state, options) if options.config else {})
    if ancestors:
        described["ancestors"] = [ancestor.model_dump(mode="json") for ancestor in ancestors]
    if options.json:
        print_json(described)
    else:
        _show(file, described, ancestry(ancestors))
    return 0 if described.get("fits", True) else 1


def describe(state: StreamState) -> dict[str, Any]:
    """Return a state as plain values, with the settings of each part of its epoch."""
    position = state.position
    values = state.model_dump(mode="json")
    return {
        **{name: values[name] for name in ("version", "dataset", "config", "seed", "step", "epoch")},
        "selection": state.selection,
        "parts": [part_values(part) for part in position.parts],
        "bytes": len(json.dumps(values)),
    }


def _fit(state: StreamState, options: argparse.Namespace) -> dict[str, Any]:
    """Return whether a stream of as many ranks can resume from the state, and what is left of its epoch."""
    from reelweave.loader.blend import open_source
    from reelweave.loader.stream.video_stream import VideoStream
    from reelweave.pipelines.configuration.model_rate import resolve_run

    dataset_override = [f"dataset={json.dumps(options.dataset)}"] if options.dataset else []
    config = resolve_run(options.config, [*options.set, *dataset_override])
    source = open_source(config.dataset, config.storage)
    try:
        stream = VideoStream(source, config.stream, world_size=state.position.part.ranks)
        stream.load_state_dict(state.model_dump(mode="json"))
    except UsageError as error:
        return {"fits": False, "why_not": str(error)}
    return {"fits": True, **stream.epoch_progress()._asdict()}


class _Named(NamedTuple):
    """A state with the file that holds it, and what the run of a checkpoint began with."""

    file: str
    state: StreamState
    ancestors: Sequence[Ancestor]


def _read(named: str, config: StorageConfig) -> _Named:
    """Return the state of a file, a checkpoint or a run, with the ancestors of a run."""
    if "://" in named or Path(named).is_dir():
        storage, folder = locate_checkpoint(named.removesuffix(f"/{STATE}"), config)
        file = storage.uri(f"{folder}/{STATE}")
        data = storage.read(f"{folder}/{STATE}", 0, MAX_STATE_BYTES)
    else:
        file, data = named, read_named(Path(named), MAX_STATE_BYTES, f"the state {named}")
    try:
        values = parse(data)
    except ValueError as error:
        reason = f"it is no JSON: {error}" if data else "it is empty"
        raise UsageError(f"{file} holds no state: {reason}") from error
    ancestors: list[Ancestor] = []
    if isinstance(values, dict) and "stream" in values:  # of a training checkpoint
        try:
            unseal(values)
        except ValueError as error:
            raise UsageError(
                f"{file} is damaged: {error}; take the state of the checkpoint before"
            ) from error
        ancestors = _ancestors(values.get("ancestors", []))
        values = values["stream"]
    if not isinstance(values, dict):
        raise UsageError(f"{file} holds no state: it is no JSON object")
    try:
        return _Named(file, read_state(values), ancestors)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error


def _ancestors(values: Any) -> list[Ancestor]:
    try:
        return TypeAdapter(list[Ancestor]).validate_python(values)
    except ValidationError:  # of a stranger's state, whose stream may be shown all the same
        return []


def _show(file: str, described: dict[str, Any], began: str) -> None:
    out = stdout()
    steps = f"{described['step']} optimizer step{'s' * (described['step'] != 1)}"
    lines = [
        f"{file}: {described['bytes']} bytes, version {described['version']}",
        f"dataset {described['dataset']}",
        f"config  {described['config']}",
        *([f"draws   {described['selection']}"] if described["selection"] else []),
        f"seed {described['seed']}, {steps} done, in epoch {described['epoch']} (the first is 0)",
        *([f"the run {began}"] if began else []),
    ]
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    # Eras of the epoch, each with its own number of ranks and microbatches.
    parts = [
        {**part, "cost": "as configured" if part["cost"] is None else json.dumps(part["cost"])}
        for part in described["parts"]
    ]
    rows = [(index, *part.values()) for index, part in enumerate(parts)]
    out.print(table("parts of the epoch", ["part", *parts[0]], rows))
    # Whether the state fits the dataset and configuration that were given.
    if "why_not" in described:
        out.print(f"it does not fit: {described['why_not']}", style="red", markup=False, soft_wrap=True)
    elif "fits" in described:
        out.print(
            f"it fits: {described['samples_done']} samples of the epoch done,"
            f" {described['samples_left']} left in {described['steps_left']} steps",
            markup=False,
            soft_wrap=True,
        )


def _show_diff(diff: StateDiff, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "relation": diff.relation,
                "same_plan": diff.same_plan,
                "steps_ahead": diff.steps_ahead,
                "epochs_ahead": diff.epochs_ahead,
                "verdict": diff.verdict,
                "differences": [different._asdict() for different in diff.differences],
            }
        )
        return
    if diff.differences:
        rows = [
            (field, _printable_value(a), _printable_value(b), meaning)
            for field, a, b, meaning in diff.differences
        ]
        stdout().print(table("differences", ["field", "A", "B", "meaning"], rows))
    stdout().print(diff.verdict, markup=False, soft_wrap=True)


def _printable_value(value: Any) -> str:
    if value is None:
        return "-"
    return json.dumps(value) if isinstance(value, dict) else str(value)
