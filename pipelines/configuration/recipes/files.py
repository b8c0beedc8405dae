"""Files of recipes: those of the package by name, and a user's own by path."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reelweave.curate.config import CurateConfig
from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.printable import printable
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.names import shown_name, without_secrets_in
from reelweave.pipelines.configuration.config import Given, given_text
from reelweave.pipelines.configuration.keys import keys_of
from reelweave.pipelines.configuration.kinds import CONFIGS
from reelweave.pipelines.configuration.recipes.model import Recipe

RECIPES = CONFIGS / "recipes"
MOST_BYTES = 64 << 10
_SUFFIXES = (".yaml", ".yml")
_NOT_OF_RECIPES = ("storage", "run", "stages", "recipe")
"""Sections that are of a machine or of a user, and stages, which are code."""


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package, in order."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def list_recipes() -> str:
    """Return the recipes of the package, a line for each with its name and what it is."""
    recipes = [read_recipe(name) for name in recipe_names()]
    width = max((len(recipe.name) for recipe in recipes), default=0)
    return "\n".join(f"{recipe.name:{width}}  {recipe.summary}" for recipe in recipes)


def read_recipe(name: str) -> Recipe:
    """Read a recipe of the package by its name, or a user's own by the path of its file.

    Raises:
        UsageError: There is none of that name, or the file is no recipe; names file, key, and what is allowed.
    """
    if "://" in name:
        raise UsageError(
            f"--recipe {shown_name(name)}: a recipe is read from a local file; save it here and name that"
        )
    if "/" in name or name.endswith(_SUFFIXES):
        return _read_file(Path(name), name)
    names = recipe_names()
    if name not in names:
        close = difflib.get_close_matches(name[:80].lower(), names, n=1, cutoff=0.4)
        nearest = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"--recipe {shown_name(name)}: there is no such recipe; {nearest}known: {', '.join(names)};"
            " or give a file, such as ./mine.yaml"
        )
    path = RECIPES / f"{name}.yaml"
    return _read_file(path, path.name)


def _read_file(path: Path, shown: str) -> Recipe:
    named = f"the recipe {printable(shown)}"
    values = given_text(read_named(path, MOST_BYTES, named), named, ())
    # Addresses are kept without users, passwords and signatures, as elsewhere in a dataset.
    recipe = values._replace(values=without_secrets_in(values.values)).validate(Recipe)
    _check_keys(recipe, named)
    settings = Given(all_settings(recipe), named, values.document, (), "")
    settings.validate(CurateConfig)
    return recipe


def _check_keys(recipe: Recipe, named: str) -> None:
    """Check that every key is one of ours, that none is set twice, and that needed models can be unset."""
    known = {key.path: key.field for key in keys_of(CurateConfig) if not key.section}
    sections = list(dict.fromkeys(path.partition(".")[0] for path in known))
    for section in recipe.config:
        if section in _NOT_OF_RECIPES or section not in sections:
            allowed = ", ".join(name for name in sections if name not in _NOT_OF_RECIPES)
            raise UsageError(
                f"{named}: config.{shown_name(section)} is no section of a recipe; known: {allowed}"
            )
    taken = dict.fromkeys(leaf_paths(recipe.config), "config")
    for entry in recipe.filters:
        where = f"{named}: the filter {entry.name!r}"
        stages = [key for key in entry.needs.keys if key.startswith("stages.")] if entry.needs else []
        for key in entry.keys:
            if key in taken:
                raise UsageError(f"{where} sets {key}, which {taken[key]} sets already")
            taken[key] = f"the filter {entry.name!r}"
            if key.partition(".")[0] in _NOT_OF_RECIPES:
                raise UsageError(f"{where}: {key} is of a user's own configuration, not of a recipe")
            field = known.get(key)
            if field is None and not (stages and is_threshold(key)):
                near = difflib.get_close_matches(key, known, n=1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise UsageError(f"{where}: {key} is no known key{meant}")
        if entry.needs and all(
            key in known and known[key].default not in (None, False) for key in entry.keys
        ):
            raise UsageError(
                f"{where} needs a model: one of its keys must be unset by default, so that it can be left out"
            )
        for key in entry.needs.keys if entry.needs else ():
            if key not in known and not key.startswith("stages."):
                raise UsageError(f"{where}: needs.keys names {key}, which is no known key")


def is_threshold(key: str) -> bool:
    """Return whether a key may be a threshold on the score of a user's own stage."""
    return key.startswith(("filters.min_", "filters.max_"))


def all_settings(recipe: Recipe) -> dict[str, Any]:
    """Return every key that a recipe sets, by section, but thresholds on scores of users' own stages."""
    settings: dict[str, Any] = {}
    merge(settings, recipe.config)
    for entry in recipe.filters:
        if entry.needs is None or not any(key.startswith("stages.") for key in entry.needs.keys):
            for key, value in entry.keys.items():
                put(settings, key, value)
    return settings


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a key with dots."""
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Put values above others, key by key; below, so that only what both hold changes."""
    for name, value in above.items():
        inner = below.get(name)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            merge(inner, value)
        elif isinstance(value, Mapping):
            below[name] = {}
            merge(below[name], value)
        else:
            below[name] = value


def leaf_paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the path of every value that is no mapping."""
    for name, value in values.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from leaf_paths(value, path)
        else:
            yield path
