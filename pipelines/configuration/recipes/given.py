"""Configuration of a curation with a recipe: defaults, then the recipe, then a user's file, then its options."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from reelweave.curate.config import CurateConfig
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import File, Given, read_given
from reelweave.pipelines.configuration.recipes.files import leaf_paths, merge, put, read_recipe
from reelweave.pipelines.configuration.recipes.model import PublishedFilter, Recipe, recipe_of

State = Literal["runs", "changed", "off", "needs", "missing"]


class FilterState(NamedTuple):
    """State of one filter of a recipe under a configuration.

    Attributes:
        entry: The published filter.
        state: runs: as the recipe says. changed: with a value of the user's. off: switched off by the user. needs: left
            out, since its model is not given. missing: it does not run here.
        values: Values of its keys; a key that is unset is None.
    """

    entry: PublishedFilter
    state: State
    values: dict[str, Any]

    @property
    def ours(self) -> str:
        """The keys with their values, as options have them, or what does it without a key; "" where nothing does."""
        if self.entry.built_in is not None:
            return self.entry.built_in
        return ", ".join(f"{key}={_shown(value)}" for key, value in self.values.items() if value is not None)


def resolve_curation(recipe: str | None, file: File, overrides: Sequence[str]) -> CurateConfig:
    """Return the validated configuration of a curation, which names the recipe it was made with; see `read_curation`.

    Raises:
        UsageError: A key is unknown or has a wrong value, there is no such recipe, or the file was made with another.
    """
    of_user = read_curation(recipe, file, overrides)
    config = of_user.validate(CurateConfig)
    kept_recipe(config, of_user.name)
    return config


def read_curation(recipe: str | None, file: File, overrides: Sequence[str]) -> Given:
    """Read a recipe, if any, a file and options above it, before defaults.

    Args:
        recipe: Name of a recipe, or path of a file with one; None for none.
        file: Path or URI of a YAML file, or None.
        overrides: "a.b=value" each, the value in YAML.

    Raises:
        UsageError: There is no such recipe, the file was made with another, or one of them cannot be read.
    """
    of_user = read_given(file, overrides)
    if recipe is None:
        return of_user
    chosen = read_recipe(recipe)
    record = chosen.record()
    named = of_user.values.get("recipe") or record
    if named != record:
        name = named.get("name") if isinstance(named, dict) else named
        raise UsageError(
            f"{of_user.name} was made with the recipe {name!r} and holds every key of it, so that --recipe {recipe}"
            " would change nothing: give one of the two"
        )
    settings, keys = values_above(chosen, of_user.values)
    return of_user._replace(values=settings, below=dict.fromkeys(keys, f"recipe {chosen.name}"))


def values_above(recipe: Recipe, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a curation above a recipe, which they name, and the keys that the recipe has.

    A filter whose model the values do not give is left out; whoever calls says so.
    """
    settings: dict[str, Any] = {}
    merge(settings, recipe.config)
    for entry in recipe.filters:
        if all(_is_set(values, key) for key in (entry.needs.keys if entry.needs else ())):
            for key, value in entry.keys.items():
                put(settings, key, value)
    keys = [*leaf_paths(settings), "recipe"]
    merge(settings, values)
    settings["recipe"] = recipe.record()
    return settings, keys


def kept_recipe(config: CurateConfig, where: str) -> Recipe | None:
    """Return the recipe that a configuration was made with; None for none.

    Raises:
        UsageError: The configuration was changed by hand there.
    """
    try:
        return recipe_of(config.recipe)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(["recipe", *map(str, first["loc"])])
        raise UsageError(
            f"{where}: {key} is no recipe's ({first['msg']}); give a recipe with --recipe"
        ) from error
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def filter_states(recipe: Recipe, values: Mapping[str, Any]) -> list[FilterState]:
    """Return what becomes of each filter of a recipe.

    Args:
        recipe: The recipe.
        values: Values of a configuration by section; a key that is not there has the recipe's value.
    """
    return [_state(entry, values) for entry in recipe.filters]


def _state(entry: PublishedFilter, values: Mapping[str, Any]) -> FilterState:
    if not entry.keys:
        return FilterState(entry, "runs" if entry.missing is None else "missing", {})
    # A threshold on the score of a stage that is not configured has no key; others may be left out of a manifest.
    now = {key: _value_at(values, key, None if entry.needs else value) for key, value in entry.keys.items()}
    unset = [value is None or value is False for value in now.values()]
    if entry.needs is not None and any(unset):
        return FilterState(entry, "needs", now)
    if all(unset) and now != entry.keys:
        return FilterState(entry, "off", now)
    return FilterState(entry, "runs" if now == entry.keys else "changed", now)


def describe_recipe(config: CurateConfig) -> Iterator[str]:
    """Yield the lines that a command prints before it works: what runs, what lacks a model, what cannot run."""
    recipe = recipe_of(config.recipe)
    if recipe is None:
        return
    states = filter_states(recipe, config.model_dump(mode="json"))
    yield f"recipe {recipe.name}: {recipe.summary}"
    running = [state for state in states if state.state in ("runs", "changed")]
    for title, some in (
        ("runs", [state for state in running if state.entry.comparable]),
        (
            "runs, by another measure than published",
            [state for state in running if not state.entry.comparable],
        ),
    ):
        if some:
            yield f"  {title}: {'; '.join(_describe_running(state) for state in some)}"
    for state in states:
        entry = state.entry
        if state.state == "needs" and entry.needs is not None:
            yield f"  needs a model, left out: {entry.name} ({entry.published}); to run it: {entry.needs.give}"
    if off := [state.entry.name for state in states if state.state == "off"]:
        yield f"  switched off by you: {'; '.join(off)}"
    for state in states:
        if state.entry.missing is not None:
            yield f"  cannot run: {state.entry.name} ({state.entry.published}): {state.entry.missing}"


def recipe_facts(config: CurateConfig) -> dict[str, Any] | None:
    """Return the recipe of a configuration and what becomes of its filters, as JSON values; None for none."""
    recipe = recipe_of(config.recipe)
    if recipe is None:
        return None
    states = filter_states(recipe, config.model_dump(mode="json"))
    filters = [{"name": state.entry.name, "state": state.state, "keys": state.values} for state in states]
    return {"name": recipe.name, "digest": config.recipe["digest"], "filters": filters}


def _describe_running(state: FilterState) -> str:
    changed = [
        f"{key} is {_shown(state.values[key])} by you, {_shown(value)} in the recipe"
        for key, value in state.entry.keys.items()
        if state.values[key] != value
    ]
    return f"{state.entry.name} ({'; '.join([state.ours, *changed])})"


def _is_set(values: Mapping[str, Any], key: str) -> bool:
    """Return whether a user gave a key another value than its default."""
    value = _value_at(values, key, None)
    return value is not None and value != _value_at(CurateConfig().model_dump(mode="json"), key, None)


def _value_at(values: Any, key: str, absent: Any) -> Any:
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return absent
        values = values[part]
    return values


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "unset" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
