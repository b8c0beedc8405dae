"""Page of the recipes, generated from their files: `python -m reelweave.pipelines.configuration.recipes.page`."""

from collections.abc import Iterator, Sequence

from reelweave.pipelines.configuration.recipes.files import read_recipe, recipe_names
from reelweave.pipelines.configuration.recipes.model import PublishedFilter, Recipe

HEAD = """# Which recipe?

    reelweave curate raw --out clips --recipe standard
    reelweave curate --recipe list

A recipe is a file of filters with thresholds. It lies below your own `--config` and `--set`, and above the defaults:
any of its keys can be set otherwise, and `--set filters.KEY=null` switches one off. `standard` is Reelweave's own and
needs no model. The others are recipes that teams have published. They have the published filters, in the published
order, each with its source; what could not be verified in a public document is left out. So Movie Gen, HunyuanVideo,
Wan and OpenVid-1M are not among them: their thresholds are not published, or could not be checked.

Before any work, the command says which of the filters run. A filter whose model you do not give is left out, with the
option that gives it. Where our score measures something else than the published one, thresholds are **not comparable**:
the table says so, and how ours was chosen. Published recipes seldom publish what each filter keeps; `reelweave report`
shows it for your films, beside the published yield where there is one. Each filter counts what it takes of what those
before it left, in clips and in seconds.

The dataset records the recipe with its digest. The command at the top of `curate.yaml` repeats it without `--recipe`,
since that file holds every key. Another recipe is another configuration: `--update` changes a finished dataset to it,
and decodes nothing where only thresholds differ. `reelweave show` names the filters of the recipe that reject a clip.

## A recipe of your own

    reelweave curate raw --out own-clips --recipe ./mine.yaml

Copy a file of [pipelines/configs/recipes](../pipelines/configs/recipes/open-sora-plan-1.3.yaml). Each entry of
`filters` has a `name`, the `published` threshold in words and a `source` of the list `sources`, and one of these:

| key | meaning |
|---|---|
| `keys` | our keys and values, such as `{filters.min_motion: 0.01}`; with `needs`, only where the model is given |
| `built_in` | what does it here without a key |
| `missing` | why it does not run here |

`comparable: false` says that our value is of another measure, and needs a `remark`. `published_yield` and `kept_share`
are what was published. `config` holds further keys by section. A recipe names no code, storage or machine.

This page is made by `python -m reelweave.pipelines.configuration.recipes.page` from these files.
"""


def recipes_page(recipes: Sequence[Recipe]) -> str:
    """Return the page in Markdown: a table of all recipes, then the filters of each."""
    rows = [
        f"| [{recipe.name}](#{_anchor(recipe.name)}) | {_cell(recipe.summary)} | {_counts(recipe)} |"
        f" {_cell(recipe.published_yield or 'not published')} |"
        for recipe in recipes
    ]
    head = "| recipe | what it is | its filters here | published yield |"
    parts = [HEAD, "## All recipes\n", "\n".join([head, "|---|---|---|---|", *rows])]
    for recipe in recipes:
        parts += [f"\n## {recipe.name}\n", "\n".join(_section(recipe))]
    return "\n".join(parts) + "\n"


def _counts(recipe: Recipe) -> str:
    """Return in words how many filters run, and how many do not."""
    missing = sum(entry.missing is not None for entry in recipe.filters)
    needs = sum(entry.needs is not None for entry in recipe.filters)
    counts = {"run": len(recipe.filters) - missing - needs, "with a model": needs, "do not run": missing}
    return ", ".join(f"{count} {words}" for words, count in counts.items() if count)


def _section(recipe: Recipe) -> Iterator[str]:
    yield f"{_cell(recipe.summary)}.\n"
    for name, source in recipe.sources.items():
        yield f"- {name}: {_cell(source)}"
    yield ""
    if recipe.published_yield:
        yield f"Published yield of the whole: {_cell(recipe.published_yield)}.\n"
    yield "| published filter | published threshold | here | published yield | source |"
    yield "|---|---|---|---|---|"
    for entry in recipe.filters:
        source = entry.source + (f", {entry.place}" if entry.place else "")
        cells = (entry.name, entry.published, _here(entry), entry.published_yield or "not published", source)
        yield f"| {' | '.join(map(_cell, cells))} |"


def _here(entry: PublishedFilter) -> str:
    """Return in words what does a filter here, or why nothing does."""
    if not entry.keys:
        return entry.built_in or f"**does not run**: {entry.missing}"
    keys = ", ".join(
        f"`{key}={str(value).lower() if isinstance(value, bool) else value}`"
        for key, value in entry.keys.items()
    )
    needs = f"; **needs a model**: {_options(entry.needs.give)}" if entry.needs else ""
    remark = f"; {entry.remark}" if entry.remark else ""
    return f"{keys}{'' if entry.comparable else ' (**not comparable**)'}{needs}{remark}"


def _options(text: str) -> str:
    """Return text with its options as code."""
    before, dashes, options = text.partition("--set ")
    return f"{before}`{dashes}{options}`" if dashes else text


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(recipes_page([read_recipe(name) for name in recipe_names()]), end="")
