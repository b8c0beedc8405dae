"""Print configurations: a file to start from, resolved values with their origins, what a key means, a JSON schema.

KIND is curate, buckets (of `reelweave report` and `plan`), train or train-vae; `init` also writes examples,
such as wan-lora and hunyuan-lora; without KIND it lists all.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from reelweave.loader.errors import UsageError
from reelweave.loader.settings import summary
from reelweave.pipelines.configuration.commented import commented_yaml
from reelweave.pipelines.configuration.config import DEFAULT, read_given
from reelweave.pipelines.configuration.keys import Key, choices_of, keys_of, kind_of, models_of, unit_of
from reelweave.pipelines.configuration.kinds import EXAMPLES, KINDS
from reelweave.pipelines.terminal.arguments import add_config, add_global, did_you_mean
from reelweave.pipelines.terminal.console import print_json, stdout, table
from reelweave.pipelines.terminal.files import output_target, write_whole

_MOST_MATCHES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `reelweave config` and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    init = actions.add_parser(
        "init", help="print a commented YAML file to start from; without KIND the list of them"
    )
    show = actions.add_parser("show", help="print a resolved configuration, with where each value was set")
    schema = actions.add_parser("schema", help="print the JSON schema, for editors that complete YAML")
    for action, kinds in ((init, [*KINDS, *EXAMPLES]), (show, list(KINDS)), (schema, list(KINDS))):
        nargs = "?" if action is init else None
        action.add_argument("kind", metavar="KIND", choices=kinds, help=", ".join(kinds), nargs=nargs)
    init.add_argument("--out", type=Path, metavar="FILE", help="write a new file instead of printing")
    explain = actions.add_parser(
        "explain", help="say what a key means, its unit, its default, where to set it"
    )
    explain.add_argument("key", metavar="KEY", help="a key or the end of one: cut.crf, memory_tokens")
    stages = actions.add_parser(
        "stages", help="list stages of your own: those that a curation configures, and installed ones"
    )
    for action in (show, explain, stages):
        add_config(action, "YAML configuration")
    show.add_argument("--recipe", metavar="NAME|FILE", help="of curate: recipe below --config and --set")
    for action in (init, show, schema, explain, stages):
        action.set_defaults(parser=action)
        add_global(action.add_argument_group("options of every command"))


def run(options: argparse.Namespace) -> int:
    """Print what is asked for."""
    actions = {"init": _init, "show": _show, "schema": _schema, "explain": _explain, "stages": _stages}
    actions[options.action](options)
    return 0


def _init(options: argparse.Namespace) -> None:
    if options.kind is None:
        _list_kinds(options)
        return
    example = EXAMPLES.get(options.kind)
    kind = KINDS[options.kind if example is None else example.kind]
    config = kind.read_given(None if example is None else example.file, []).validate(kind.model())
    if options.json:
        print_json(config.model_dump(mode="json"))
        return
    head = [
        f"Configuration of `reelweave {kind.used_by[0]} --config FILE`. Keep what you change; a key that is left out",
        "has its default. --set section.key=value wins over the file.",
    ]
    text = commented_yaml(config, head) if example is None else example.file.read_text()
    if options.out is None:
        print(text, end="")
        return
    if output_target(options.out, "--out").exists():
        raise UsageError(f"--out {options.out} is there already; name a new file")
    write_whole(options.out, text.encode(), "--out")
    stdout().print(
        f"{options.out}: change it, then give it to reelweave {kind.used_by[0]} as --config", soft_wrap=True
    )


def _list_kinds(options: argparse.Namespace) -> None:
    if options.out is not None:
        raise UsageError(f"--out needs a KIND, one of {', '.join([*KINDS, *EXAMPLES])}")
    rows = [
        {"kind": name, "for": f"reelweave {kind.used_by[0]}", "content": kind.purpose}
        for name, kind in KINDS.items()
    ]
    rows += [
        {"kind": name, "for": f"reelweave {example.kind}", "content": example.purpose}
        for name, example in EXAMPLES.items()
    ]
    if options.json:
        print_json(rows)
        return
    stdout().print(table("reelweave config init KIND", list(rows[0]), [list(row.values()) for row in rows]))
    stdout().print("Recipes of filters: reelweave curate --recipe list", markup=False)


def _show(options: argparse.Namespace) -> None:
    from reelweave.pipelines.configuration.recipes.given import read_curation

    kind = KINDS[options.kind]
    if options.recipe is not None and options.kind != "curate":
        raise UsageError(f"--recipe is of a curation, not of {options.kind}")
    values = (
        read_curation(options.recipe, options.config, options.set)
        if options.kind == "curate"
        else kind.read_given(options.config, options.set)
    )
    config = values.validate(kind.model())
    if options.json:
        origins = {
            key.path: values.origin(key.path.split(".")) for key in keys_of(type(config)) if not key.section
        }
        print_json(
            {
                "config": config.model_dump(mode="json"),
                "set_by": {k: v for k, v in origins.items() if v != DEFAULT},
            }
        )
        return
    head = [
        f"Resolved configuration of `reelweave {kind.used_by[0]}`; behind each key, where its value was set."
    ]
    print(commented_yaml(config, head, lambda path, _: values.origin(path)), end="")


def _schema(options: argparse.Namespace) -> None:
    print_json(KINDS[options.kind].model().model_json_schema())


def _stages(options: argparse.Namespace) -> None:
    """List stages; of those that are installed only what the configuration names is imported."""
    from reelweave.curate.config import CurateConfig
    from reelweave.curate.models.custom.code import list_installed, version_of
    from reelweave.curate.models.custom.configured import stage_class

    config = read_given(options.config, options.set).validate(CurateConfig)
    rows: list[dict[str, Any]] = []
    # Configured stages, whose code is imported.
    for name, stage_config in config.stages.items():
        stage_type, code = stage_class(stage_config.code), stage_config.code
        rows.append(
            {
                "stage": name,
                "configured": True,
                "code": code.place,
                "package": code.version or None,
                "scores": dict(stage_type.scores),
                "keys": {key: field.description for key, field in type(stage_config).model_fields.items()},
            }
        )
    # Installed ones, of which only the entry point is read.
    for point in list_installed():
        if point.name not in config.stages:
            rows.append(
                {
                    "stage": point.name,
                    "configured": False,
                    "code": point.value,
                    "package": version_of(point) or None,
                    "scores": {},
                    "keys": {},
                }
            )
    if options.json:
        print_json(rows)
        return
    # For a person: what runs, what it scores, and its keys.
    out = stdout()
    if not rows:
        out.print("no stage is configured or installed; docs/stages.md says how to write one", soft_wrap=True)
    for row in rows:
        of = f" of {row['package']}" if row["package"] else ""
        out.print(f"{row['stage']}: {row['code']}{of}", markup=False, soft_wrap=True)
        if not row["configured"]:
            out.print(
                f"  installed; to run it: --set stages.{row['stage']}={{}}", markup=False, soft_wrap=True
            )
        for score, meaning in row["scores"].items():
            line = f"  score {score}: {meaning}; filters.min_{score}, filters.max_{score}"
            out.print(line, markup=False, soft_wrap=True)
        for key, line in row["keys"].items():
            out.print(f"  stages.{row['stage']}.{key}: {line}", markup=False, soft_wrap=True)


def _explain(options: argparse.Namespace) -> None:
    all_keys = {
        (name, key.path, key.only): key for name, kind in KINDS.items() for key in keys_of(kind.model())
    }
    wanted_key = options.key.removeprefix("--set ").strip()
    matches = {at: key for at, key in all_keys.items() if f".{at[1]}".endswith(f".{wanted_key}")}
    exact = {at: key for at, key in matches.items() if at[1] == wanted_key}
    matches = exact or matches
    if not matches:
        ends = {part for _, path, _ in all_keys for part in (path, path.rsplit(".", 1)[-1])}
        raise UsageError(f"there is no key {wanted_key}{did_you_mean(wanted_key, sorted(ends))}")
    explained = list(_merge_matches(matches))
    if options.json:
        print_json(explained)
        return
    out = stdout()
    for explanation in explained[:_MOST_MATCHES]:
        for line in _lines(explanation, options):
            out.print(line, soft_wrap=True)
    if len(explained) > _MOST_MATCHES:
        out.print(f"and {len(explained) - _MOST_MATCHES} more; give more of the key's path")


def _merge_matches(matches: dict[tuple[str, str, str], Key]) -> Iterator[dict[str, Any]]:
    """Yield what is said of each key, once for all kinds that share it."""
    kinds: dict[tuple[str, str, str], list[str]] = {}
    for (name, path, only), key in matches.items():
        kinds.setdefault((path, only, key.field.description or ""), []).append(name)
    for (name, path, only), key in matches.items():
        names = kinds[path, only, key.field.description or ""]
        if name != names[0]:
            continue
        field = key.field
        value: Any = None if field.is_required() else field.get_default(call_default_factory=True)
        sections = models_of(field.annotation)
        yield {
            "key": path,
            "kinds": names,
            "only_with": only.strip("`"),
            "description": field.description or " ".join(map(summary, sections)),
            "type": kind_of(field),
            "choices": choices_of(field),
            "unit": unit_of(path),
            "required": field.is_required(),
            "default": value.model_dump(mode="json") if isinstance(value, BaseModel) else value,
        }


def _lines(explanation: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    only = f", with {explanation['only_with']}" if explanation["only_with"] else ""
    yield f"{explanation['key']} ({', '.join(explanation['kinds'])}{only})"
    if explanation["description"]:
        yield f"  {explanation['description']}"
    yield f"  type: {explanation['type']}" + (f"; unit: {explanation['unit']}" if explanation["unit"] else "")
    if explanation["type"] == "section":
        keys = [
            key.path
            for name in explanation["kinds"][:1]
            for key in keys_of(KINDS[name].model())
            if key.path.rpartition(".")[0] == explanation["key"]
        ]
        yield f"  keys: {', '.join(dict.fromkeys(path.rsplit('.', 1)[-1] for path in keys))}"
    else:
        yield f"  default: {_begun_with(explanation) if explanation['required'] else _value(explanation['default'])}"
    commands = ", ".join(command for name in explanation["kinds"] for command in KINDS[name].used_by)
    yield f"  set it: --set {explanation['key']}=VALUE, or in the YAML of --config; read by: {commands}"
    if options.config or options.set:
        yield f"  here: {_here(explanation['key'], options)}"


def _begun_with(explanation: dict[str, Any]) -> str:
    """Return in words what stands for a default of a key without one: the values of the files to start from."""
    begun = []
    for name in explanation["kinds"]:
        value: Any = KINDS[name].read_given(None, []).values if KINDS[name].start else {}
        for part in explanation["key"].split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            begun.append(f"`reelweave config init {name}` writes {_value(value)}")
    return "; ".join(["none, it must be given", *begun])


def _here(path: str, options: argparse.Namespace) -> str:
    """Return the value that a file and options give a key, and where."""
    values = read_given(options.config, options.set)
    origin = values.origin(path.split("."))
    if origin == DEFAULT:
        return DEFAULT
    value: Any = values.values
    for part in path.split("."):
        value = value[part]
    return f"{_value(value)}, set by {origin}"


def _value(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
