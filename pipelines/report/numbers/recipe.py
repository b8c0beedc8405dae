"""Yields of a recipe: what each of its filters takes of what those before left, beside what was published."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset import Dataset, StageTotal
from reelweave.pipelines.configuration.recipes.given import FilterState, filter_states
from reelweave.pipelines.configuration.recipes.model import Recipe, recipe_of
from reelweave.pipelines.report.numbers.scores import Scores

_FILTERS = "filters."


@dataclass(frozen=True)
class Yield:
    """Yield of one filter, in clips and in seconds of film.

    Attributes:
        clips: Clips that come to it and have its scores; spans, for the lengths of clips.
        removed: Those that it takes.
        seconds: Duration of those that come to it.
        removed_seconds: Duration of those that it takes.
        unmeasured: Clips that come to it without its scores; they go on to the next.
    """

    clips: int
    removed: int
    seconds: float
    removed_seconds: float
    unmeasured: int = 0

    @property
    def kept_share(self) -> float | None:
        """Share of the clips that it keeps; None where none come to it."""
        return 1 - self.removed / self.clips if self.clips else None

    @property
    def kept_seconds_share(self) -> float | None:
        """Share of the seconds that it keeps; None where none come to it."""
        return 1 - self.removed_seconds / self.seconds if self.seconds else None


@dataclass(frozen=True)
class RecipeStep:
    """One published filter, ours, and what it does here.

    Attributes:
        name: What is filtered.
        published: Published threshold, in words.
        source: Where it is published.
        published_yield: Published yield, in words; None where none is published.
        published_kept_share: Published share of clips that it keeps.
        state: One of `reelweave.pipelines.configuration.recipes.given.State`.
        ours: Our keys with their values, or what does it without a key; "" where nothing does.
        comparable: Whether our threshold means the same as the published one.
        note: How ours differs, which model it lacks, or why it does not run.
        yields: What it takes here; None where it takes nothing that is counted.
    """

    name: str
    published: str
    source: str
    published_yield: str | None
    published_kept_share: float | None
    state: str
    ours: str
    comparable: bool
    note: str
    yields: Yield | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, with the shares."""
        values = asdict(self)
        if self.yields is not None:
            shares = ("kept_share", "kept_seconds_share")
            values["yields"] |= {share: getattr(self.yields, share) for share in shares}
        return values


@dataclass(frozen=True)
class RecipeFigures:
    """Yields of the recipe that a dataset was made with.

    Attributes:
        name: Name of the recipe.
        digest: Digest of its content.
        summary: What it is.
        steps: Its filters, in the published order.
        published_yield: Published yield of all its filters, in words; None where none is published.
        published_kept_share: Published share of clips that all its filters keep.
        clips: Clips that were cut.
        passed: Those that all its filters let through.
        kept_clips: Those of them that are kept.
        problem: Why there are no figures; "" where there are.
    """

    name: str = ""
    digest: str = ""
    summary: str = ""
    steps: Sequence[RecipeStep] = ()
    published_yield: str | None = None
    published_kept_share: float | None = None
    clips: int = 0
    passed: int = 0
    kept_clips: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "steps": [step.to_json() for step in self.steps]}


def recipe_numbers(dataset: Dataset, scores: Scores, stages: Iterable[StageTotal]) -> RecipeFigures | None:
    """Return the yields of the recipe that a dataset was made with; None where it was made with none.

    Args:
        dataset: The dataset; only its manifest is read.
        scores: Its scores, with its thresholds.
        stages: Totals of its accounting.
    """
    curate = dataset.manifest.config.get("curate")
    record = curate.get("recipe") if isinstance(curate, dict) else None
    try:
        recipe = recipe_of(record)
    except ValueError:  # another program's, or changed by hand
        return RecipeFigures(problem="the recipe in manifest.json is not one that this version can read")
    if recipe is None or not isinstance(curate, dict):
        return None
    seconds_N = pc.subtract(scores.clips.column("end_s"), scores.clips.column("start_s")).to_numpy()
    remaining_N = np.ones(len(scores.clips), bool)
    totals, steps = list(stages), []
    for state in filter_states(recipe, curate):
        yields = None
        if state.state in ("runs", "changed"):
            yields = _yields(state, scores, seconds_N, remaining_N, totals)
        steps.append(_step(recipe, state, yields))
    kept_N = pc.equal(scores.clips.column("state"), "kept").to_numpy()
    return RecipeFigures(
        name=recipe.name,
        digest=recipe.record()["digest"],
        summary=recipe.summary,
        steps=steps,
        published_yield=recipe.published_yield,
        published_kept_share=recipe.kept_share,
        clips=len(scores.clips),
        passed=int(remaining_N.sum()),
        kept_clips=int((remaining_N & kept_N).sum()),
    )


def _step(recipe: Recipe, state: FilterState, yields: Yield | None) -> RecipeStep:
    entry = state.entry
    note = entry.remark or entry.missing or ""
    if state.state == "needs" and entry.needs is not None:
        note = f"needs a model that was not given: {entry.needs.give}"
    place = f", {entry.place}" if entry.place else ""
    return RecipeStep(
        name=entry.name,
        published=entry.published,
        source=f"{recipe.sources[entry.source]}{place}",
        published_yield=entry.published_yield,
        published_kept_share=entry.kept_share,
        state=state.state,
        ours=state.ours,
        comparable=entry.comparable,
        note=note,
        yields=yields,
    )


def _yields(
    state: FilterState,
    scores: Scores,
    seconds_N: NDArray[np.float64],
    remaining_N: NDArray[np.bool_],
    totals: Sequence[StageTotal],
) -> Yield | None:
    """Return what a filter takes, and take it from the clips that remain."""
    sections = {key.partition(".")[0] for key in state.values}
    if thresholds := [key.removeprefix(_FILTERS) for key in state.values if key.startswith(_FILTERS)]:
        return _threshold_yields(thresholds, scores, seconds_N, remaining_N)
    if "spans" in sections:
        removed = [total for total in totals if (total.state, total.stage) == ("filtered", "spans")]
        return _total_yields(removed, totals)
    if "dedup" in sections:
        removed = [total for total in totals if total.state == "duplicate"]
        return _total_yields(removed, [*removed, *(total for total in totals if total.state == "kept")])
    return None


def _threshold_yields(
    keys: Sequence[str], scores: Scores, seconds_N: NDArray[np.float64], remaining_N: NDArray[np.bool_]
) -> Yield:
    missing_N, beyond_N = (np.zeros(len(remaining_N), bool) for _ in range(2))
    for key in keys:
        bound, _, name = key.partition("_")
        limit = scores.thresholds.get(key)
        if limit is None:
            continue
        values_N = scores.columns.get(name, np.full(len(remaining_N), np.nan))
        missing_N |= np.isnan(values_N)
        beyond_N |= values_N < limit if bound == "min" else values_N > limit
    coming_N = remaining_N & (beyond_N | ~missing_N)
    removed_N = remaining_N & beyond_N
    unmeasured = int((remaining_N & missing_N & ~beyond_N).sum())
    remaining_N &= ~beyond_N
    return Yield(
        clips=int(coming_N.sum()),
        removed=int(removed_N.sum()),
        seconds=float(seconds_N[coming_N].sum()),
        removed_seconds=float(seconds_N[removed_N].sum()),
        unmeasured=unmeasured,
    )


def _total_yields(removed: Sequence[StageTotal], every: Sequence[StageTotal]) -> Yield:
    return Yield(
        clips=sum(total.rows for total in every),
        removed=sum(total.rows for total in removed),
        seconds=sum(total.seconds for total in every),
        removed_seconds=sum(total.seconds for total in removed),
    )
