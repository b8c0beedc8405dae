"""Recipe of a dataset: published filters beside ours, and the yield of each."""

from typing import Any

from reelweave.loader.text import pluralize
from reelweave.pipelines.report.numbers.recipe import RecipeFigures, RecipeStep, Yield

_COLUMNS = (
    "published filter",
    "published threshold",
    "here",
    "clips that come",
    "taken",
    "seconds taken",
    "kept, clips",
    "kept, seconds",
    "published yield",
)
_NOT_APPLIED = {
    "off": "not applied: switched off",
    "needs": "not applied",
    "missing": "not applied",
}


def recipe_section(figures: RecipeFigures | None) -> dict[str, Any] | None:
    """Return what page and terminal show of a recipe; None where a dataset was made with none."""
    if figures is None:
        return None
    if figures.problem:
        return {"title": "Recipe", "note": f"No yields: {figures.problem}.", "columns": (), "rows": []}
    applied = _applied(figures)
    return {
        "title": f"Recipe {figures.name}: what each filter takes",
        "note": f"{figures.summary}. {applied} of {len(figures.steps)} published filters are applied. Each counts what"
        " it takes of what those above it left, by the stored scores and in the recipe's order; the accounting names"
        f" the first threshold in the order of the configuration. Recipe {figures.name}, digest {figures.digest}.",
        "columns": _COLUMNS,
        "rows": [_row(step) for step in figures.steps],
        "remarks": [_remarks(step) for step in figures.steps],
        "end": _end(figures),
    }


def _row(step: RecipeStep) -> tuple[str | int, ...]:
    ours = _NOT_APPLIED.get(step.state, step.ours)
    if step.state == "changed":
        ours = f"{ours} (changed by you)"
    if step.state in ("runs", "changed") and not step.comparable:
        ours = f"{ours} (not comparable)"
    return (step.name, step.published, ours, *_counts(step.yields), step.published_yield or "not published")


def _remarks(step: RecipeStep) -> str:
    """Return how ours differs or why it is not applied, and the source."""
    remarks = [step.note] if step.note else []
    if step.yields is not None and step.yields.unmeasured:
        remarks.append(f"{step.yields.unmeasured:,} clips that come have no such score")
    return "; ".join([*remarks, f"source: {step.source}"])


def _counts(yields: Yield | None) -> tuple[str | int, ...]:
    if yields is None:
        return ("", "", "", "", "")
    return (
        yields.clips,
        yields.removed,
        f"{yields.removed_seconds:.1f}",
        _percent(yields.kept_share),
        _percent(yields.kept_seconds_share),
    )


def _end(figures: RecipeFigures) -> str:
    """Return what all filters together keep, by how many of the published ones, beside the published yield."""
    left_out = figures.passed - figures.kept_clips
    share = _percent(figures.kept_clips / figures.clips) if figures.clips else "none"
    is_not = pluralize(left_out, "is", "are")
    others = f" {is_not} not, for other thresholds, duplicates or failures." if left_out else ""
    published = figures.published_yield or "not published"
    return (
        f"{figures.passed:,} of {figures.clips:,} clips pass the {_applied(figures)} filters of {len(figures.steps)}"
        f" that are applied; {figures.kept_clips:,} of them are kept ({share}).{others}"
        f" Published yield of all {len(figures.steps)}: {published}."
    )


def _applied(figures: RecipeFigures) -> int:
    return sum(step.state in ("runs", "changed") for step in figures.steps)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
