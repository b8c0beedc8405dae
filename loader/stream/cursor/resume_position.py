"""Position at which a stream continues a saved state."""

from typing import Any

from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.reader import NAME_CHARS
from reelweave.loader.errors import StateError, UsageError
from reelweave.loader.plan.position import Position, Setting, StreamState
from reelweave.loader.stream.curriculum_plans import CurriculumPlans

_MEANING = {
    "dataset": "fingerprints of what `dataset` names; a run goes on with later revisions of a dataset",
    "seed": "stream.seed",
    "config": "fingerprints of stream.buckets and stream.curriculum, and of whether stream.policy is equal_token",
}


def continued_position(
    loaded: StreamState,
    settings: dict[str, Any],
    source: SampleSource,
    stages: CurriculumPlans,
    setting: Setting,
    world_size: int,
    microbatches: int,
) -> Position:
    """Return the position at which a stream continues a saved state.

    Args:
        loaded: saved state.
        settings: state of the stream at its own position.
        source: dataset or blend of the stream, of the same or a later revision than the saved state's.
        stages: plans of the stream.
        setting: setting of the stream; cost and stage are those of the saved state.
        world_size: number of data-parallel ranks.
        microbatches: mean microbatches per rank and step.

    Raises:
        UsageError: the state belongs to another dataset, seed, bucket configuration or version, so its position
            counts steps of another plan. Or the epoch has too many settings for a state.
    """
    _check_selection(loaded, settings)
    # The position in a state of an earlier revision of the dataset is one of that revision's plan.
    position, earlier = loaded.position, _earlier_revision(source, loaded)
    if earlier is not None:
        _check_may_enter(position)
        position = stages.settle(position.planned_on(earlier, isinstance(source, Blend)))
    # What decides the plan must be the same, or the position would count other steps.
    for key in ("seed", "config") if earlier is not None else ("dataset", "seed", "config"):
        if (saved := getattr(loaded, key)) != settings[key]:
            raise StateError(
                f"cannot resume: {key} was {saved} when the state was saved and is {settings[key]} now"
                f" ({_MEANING[key]})",
                "use the same one",
            )
    # A state is input that others wrote: it must name what exists.
    stage_indices = [era.stage for era in position.eras] + [setting.stage for setting in position.settings]
    if max(stage_indices) >= stages.count:
        raise UsageError("not a state of the loader: settings: names a stage that the curriculum has not")
    steps = len(stages.plan(position))
    if position.part.steps > steps:
        raise UsageError(
            f"cannot resume: {position.part.steps} steps of the epoch are done, but it has {steps} steps"
        )
    # From here on with the stream's own ranks and policy, and with the state's cost and stage.
    before = position.part.setting
    setting = setting.model_copy(update={"cost": before.cost, "stage": before.stage})
    position = position.going_on(setting, world_size, microbatches).entering()
    if not position.fits_a_state:
        raise UsageError(
            "cannot resume: steps of this epoch were made in as many ways as a state can hold; until it ends, use"
            " the ranks, microbatches, policy, regime and lookahead that the state was saved with"
            " (`reelweave state inspect` shows them)"
        )
    return position


def _check_selection(loaded: StreamState, settings: dict[str, Any]) -> None:
    """Check that a state drew from the same samples, where it is not the same anyway.

    Raises:
        UsageError: it drew from others.
    """
    now = settings.get("selection")
    if loaded.dataset != settings["dataset"] and loaded.selection != now:
        before, after = (
            words or "all samples (no stream.where, split or quota)" for words in (loaded.selection, now)
        )
        raise StateError(
            f"cannot resume: the state was saved with {before}, and here is {after}", "use the same selection"
        )


def dataset_names(source: SampleSource) -> list[str]:
    """Return places, revisions and sizes of the datasets of a source, for people."""
    datasets = source.datasets if isinstance(source, Blend) else (source,)
    return [
        f"{dataset.storage.root} (revision {dataset.manifest.revision}, {dataset.manifest.totals.samples} samples)"
        for dataset in datasets
        if isinstance(dataset, Dataset)
    ]


def _earlier_revision(source: SampleSource, loaded: StreamState) -> str | None:
    """Return the name of the earlier revision that a state was saved with; None for the current one or another source.

    Raises:
        UsageError: the source is a blend that was changed otherwise.
    """
    if loaded.dataset == source.fingerprint:
        return None
    if isinstance(source, Dataset):
        return None if source.revision_of(loaded.dataset) is None else loaded.dataset[:NAME_CHARS]
    if not isinstance(source, Blend) or loaded.revisions is None:
        return None
    try:
        source.past(loaded.dataset, loaded.revisions)
    except UsageError as error:
        raise StateError(
            f"cannot resume: {error}",
            "a blend or a selection goes on with later revisions of its datasets, and with its own weights,"
            " repetitions, ranges and conditions: use the blend file and the keys that the state was saved with",
        ) from error
    return f"{loaded.dataset[:NAME_CHARS]}:{loaded.revisions}"


def _check_may_enter(position: Position) -> None:
    if any(part.setting.shuffle.run > 1 for part in position.parts) and not position.begins_epoch:
        raise UsageError(
            "cannot resume: a later revision of the dataset cannot enter within an epoch whose shuffle keeps runs"
            " together, since where samples lay before is not known any more; let it enter between two epochs"
        )
