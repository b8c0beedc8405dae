"""Curation from inputs to a published dataset: list, cut, ask models, decide, deduplicate, shard, publish."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from reelweave.curate.caption.types import CAPTIONS as STAGE_OF_CAPTIONS
from reelweave.curate.config import CurateConfig
from reelweave.curate.filters.measure import ADDED
from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.redo import begin_redo, end_redo
from reelweave.curate.run.assembly import (
    CurationRequest,
    begin_state,
    check_model_paths,
    check_models,
    describe_missing,
    resolve_request,
)
from reelweave.curate.run.driver import Driver
from reelweave.curate.run.outlook.work import may_be_older, sentences, work_of
from reelweave.curate.run.runners.progress import Progress, finish_status
from reelweave.curate.run.shard import STAGE as SHARD
from reelweave.curate.run.shard import revisions_of
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.tables.captions import captions_table, describe_variants
from reelweave.curate.run.tables.clip_locations import identities_of
from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.columns import equal, filter_rows, places_in, texts_of
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.run.tables.remarks import (
    describe_captions,
    describe_clips,
    describe_empty_sources,
    describe_match,
    describe_sidecars,
)
from reelweave.curate.run.tables.samples import accounting_table, scores_table
from reelweave.curate.run.tables.transitions import transitions_table
from reelweave.curate.run.undone import describe_unanswered
from reelweave.curate.run.write_shards import write_shards
from reelweave.curate.source_pass.parts.store import PARTS
from reelweave.curate.source_pass.stage import KILLED
from reelweave.curate.takedown.forget import forget
from reelweave.curate.takedown.takedown import TakeDowns
from reelweave.loader.dataset import ACCOUNTING, SCORES, Content, Dataset, Manifest, publish, settle
from reelweave.loader.dataset.publishing.publication import read_once
from reelweave.loader.dataset.schema import CAPTIONS, TRANSITIONS
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import differences
from reelweave.loader.storage import Storage, hold_lease, open_storage

COMMAND = "reelweave curate"
VERSIONED = ("reelweave", "av", "numpy", "pyarrow")


@dataclass(frozen=True)
class Outcome:
    """Result of a curation run.

    Attributes:
        manifest: Manifest of the published dataset.
        already_there: Whether there was nothing to do.
        notes: Sentences for the person who runs this: models that are missing, sources gone from the input.
        seconds: Seconds that all workers of this run spent, by stage.
    """

    manifest: Manifest
    already_there: bool
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] | None = None


def curate(
    inputs: Sequence[str],
    out: str,
    config: CurateConfig,
    progress: Callable[[Progress], None] = lambda _: None,
    *,
    update: bool = False,
    retry_failed: bool = False,
    redo_older: bool = False,
    beside: Mapping[str, bytes] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Make the dataset ``out`` from ``inputs``; the same call finishes an interrupted run.

    Args:
        inputs: Files, folders, prefixes, addresses, lists.
        out: Folder or S3 prefix.
        config: Configuration of all stages.
        progress: Called as the work goes on.
        update: Whether to change a finished dataset: other configuration, new sources beside the old ones. Valid
            results are reused; shards whose samples stay the same are not touched.
        retry_failed: Whether to work again on sources and clips that failed; implies ``update``.
        redo_older: Whether to cut sources again that an earlier version cut; implies ``update``. Otherwise their
            results stay, and the outcome's notes say how many there are.
        beside: Further files of the dataset by path, which no checksum covers; see `write_beside`.
        say: Called before the work begins, with sentences that the outcome's notes have, too: what an update redoes,
            and what it cost before.

    Raises:
        UsageError: no source is found, a model is not available, or ``update`` is missing although ``out``
            holds a finished dataset of other inputs or configuration.
        MachineError: the disk, the network or this machine kept sources from being read; all others are done, nothing
            is published, and the same call goes on.
        RunError: the environment failed; finished work is kept for the next run.
    """
    check_model_paths(config)
    with hold_lease(open_storage(out, config.storage), COMMAND) as storage:
        change = Change(update or retry_failed or redo_older, retry_failed, redo_older)
        outcome = _curate(inputs, storage, config, progress, change, say)
        write_beside(storage, beside or {}, only_missing=outcome.already_there)
    return outcome


def write_beside(storage: Storage, files: Mapping[str, bytes], only_missing: bool) -> None:
    """Write files into a dataset as the holder of its lease, so that they are of the run that changed it last.

    Args:
        storage: Storage of the dataset.
        files: Content by path.
        only_missing: Whether files that are there stay as they are.
    """
    for path, data in files.items():
        if not only_missing or storage.stat(path) is None:
            storage.write(path, data)


@dataclass(frozen=True)
class Change:
    """Change of a finished dataset that is asked for; see `curate`."""

    update: bool = False
    retry_failed: bool = False
    redo_older: bool = False


def _curate(
    inputs: Sequence[str],
    storage: Storage,
    config: CurateConfig,
    progress: Callable[[Progress], None],
    change: Change,
    say: Callable[[str], None],
) -> Outcome:
    """Curate as the holder of the output's lease."""
    request = resolve_request(inputs, storage, config, change.update)
    ledger, dataset, settings = request.ledger, request.dataset, request.config
    same = dataset is not None and not change.retry_failed and _equal(dataset.manifest.config, settings)
    if dataset is not None and same:
        older = _older(request, config)
        if not (change.redo_older and older):
            settle(dataset)
            _tidy(ledger, dataset, config.run.keep_rejected)
            notes = (*request.notes, *older, *describe_unanswered(dataset), *finish_status(ledger))
            return Outcome(dataset.manifest, already_there=True, notes=notes)
    if dataset is not None and not change.update:
        raise _other_dataset(dataset.manifest.config, settings, storage.root)
    weights = check_models(config, request.stages)
    ledger.notes.write("config", config.content())
    missing = describe_missing(config)
    state = begin_state(config, request)
    if change.retry_failed:
        state.todo.forget_failures()
    open_work = sentences(work_of(state, request.change, change.redo_older))
    if change.update and dataset is not None and not open_work:
        open_work = ("this update cuts no source and asks no model: it decides anew from stored results",)
    for sentence in open_work:
        say(sentence)
    if change.redo_older:
        if dataset is not None:
            begin_redo(ledger, dataset.manifest.revision)
        state.todo.redo_older()
    driver = Driver(state, config.run, progress)
    clips = driver.decide(missing)
    shards = write_shards(state, clips, config.shard, config.run.keep_rejected, progress, driver.kind)
    listed = state.inputs.listed
    content = Content(
        accounting=read_once((accounting_table(table, listed) for table in clips), ACCOUNTING),
        scores=read_once((scores_table(table, listed) for table in clips), SCORES),
        further=_further_tables(state, clips),
        config=dict(settings) | _manifest_revisions(state, request.revisions),
        versions={**versions(), **weights},
        removals=dataset.manifest.removals if dataset is not None else [],
    )
    rejected = pa.concat_arrays([_rejected_ids(table) for table in clips])
    seconds = driver.seconds()
    notes = (
        *driver.notes(),
        *describe_captions(clips, config.captions.max_chars),
        *describe_sidecars(clips),
        *describe_match(clips),
        *describe_variants(_captions_tables(state, clips)),
        *state.verdict.copies.notes,
        *state.verdict.notes,
        *describe_clips(clips),
        *describe_empty_sources(clips, [source.uri for source in listed]),
    )
    del state, driver, clips  # publishing takes as much memory again
    stored = [source.to_stored() for source in request.sources]
    ledger.notes.write("inputs", {"inputs": list(request.inputs), "sources": stored})
    manifest = publish(storage, shards, content, dataset.manifest if dataset is not None else None)
    end_redo(ledger)
    published = Dataset(storage)
    _tidy(ledger, published, config.run.keep_rejected, rejected)
    notes = (*notes, *describe_unanswered(published), *finish_status(ledger))
    return Outcome(manifest, False, (*missing, *request.notes, *open_work, *notes), seconds)


def _further_tables(state: CurationState, clips: Partitions) -> dict[str, pa.RecordBatchReader]:
    """Return the tables that a dataset may lack; that of captions where there are any."""
    listed = state.inputs.listed
    tables = {"transitions": read_once((transitions_table(table, listed) for table in clips), TRANSITIONS)}
    if any(map(len, _captions_tables(state, clips))):
        tables["captions"] = read_once(_captions_tables(state, clips), CAPTIONS)
    return tables


def _captions_tables(state: CurationState, clips: Partitions) -> Iterator[pa.Table]:
    """Yield the further captions of each partition."""
    # Captions may depend on scores of stages before them.
    is_caption = [stage.name.startswith(STAGE_OF_CAPTIONS) for stage in state.inputs.stages]
    stages = state.inputs.stages[: len(is_caption) - is_caption[::-1].index(True)]
    for partition, table in enumerate(clips):
        yield captions_table(table, state.results.find(partition, table, stages))


def _manifest_revisions(state: CurationState, revisions: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the revisions of the code that decided a dataset, and the scores that no clip lacks, for its manifest."""
    if state.inputs.dataset is not None and not state.todo.redoes_older:
        # Shards that stay are those of the revision that wrote them.
        was = revisions_of(state.inputs.dataset).get("shard", 0)
        revisions = {name: was if name == "shard" else revision for name, revision in revisions.items()}
    revisions = {name: revision for name, revision in revisions.items() if revision}
    lacking = state.results.closed.lacking & state.inputs.select_sources(state.inputs.sources.keys())
    named = {"revisions": revisions, "scores": {} if lacking.any() else dict(ADDED)}
    return {name: versions for name, versions in named.items() if versions}


def _older(request: CurationRequest, config: CurateConfig) -> tuple[str, ...]:
    """Return in words what earlier versions made of the sources of a finished dataset."""
    dataset = request.dataset
    if dataset is None or not may_be_older(request.ledger, dataset, request.revisions, request.earlier):
        return ()
    unchanged = replace(request.change, before=None)
    return sentences(work_of(begin_state(config, request), unchanged, redo_older=False))


def _rejected_ids(clips: pa.Table) -> pa.Array:
    """Return the identities of clips that may come back."""
    return clip_ids(filter_rows(clips, ~equal(clips, "state", "kept") & ~equal(clips, "sha256", "")))


def versions() -> dict[str, str]:
    """Return the versions of the code that decides the dataset's bytes."""
    package_versions = {name: importlib.metadata.version(name) for name in VERSIONED}
    return {**package_versions, "python": ".".join(str(part) for part in sys.version_info[:2])}


def _tidy(ledger: Ledger, dataset: Dataset, keep_rejected: bool, rejected: pa.Array | None = None) -> None:
    """Remove staged clips that lie in a shard, and everything that the published revision replaced.

    Args:
        ledger: Ledger of the dataset.
        dataset: The published revision.
        keep_rejected: Whether rejected clips are kept.
        rejected: Identities of clips that may come back; None for all staged ones.
    """
    forget(ledger, TakeDowns(tuple(dataset.manifest.removals)))
    staged = texts_of(ledger.blobs.staged_clips())
    keep = np.ones(len(staged), bool) if rejected is None else places_in(staged, rejected) >= 0
    stay = keep & keep_rejected
    for identities in identities_of(dataset):
        stay &= places_in(staged, identities) < 0
    ledger.blobs.drop_clips(staged.filter(pa.array(~stay)).to_pylist())
    for folder in (f"{SHARD}/", PARTS, KILLED):
        dataset.storage.delete_tree(f"{LEDGER}{folder}")
    dataset.storage.sweep()


def _equal(existing: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Return whether a dataset is as asked for; a threshold that its version did not know yet is unset in it."""
    configured = {name: values for name, values in existing.items() if name not in ("revisions", "scores")}
    return next(differences(configured, settings), None) is None


def _other_dataset(existing: Mapping[str, Any], settings: Mapping[str, Any], out: str) -> UsageError:
    keys = (key for key, *_ in differences(existing.get("curate", {}), settings["curate"]))
    changed = sorted({"recipe" if key.startswith("recipe.") else key for key in keys})
    if not changed and existing.get("others") != settings.get("others"):
        changed = ["content of a dataset that dedup names"]
    if not changed:
        code = differences(existing.get("stages", {}), settings.get("stages", {}))
        changed = sorted({f"code of stages.{key.split('.')[0]}" for key, *_ in code})
    if not changed:
        models = differences(existing.get("models", {}), settings.get("models", {}))
        changed = sorted(f"model at {name}" for name, *_ in models)
    difference = f"with another {', '.join(changed)}" if changed else "from other inputs"
    return UsageError(
        f"{out} already holds a dataset made {difference}; choose another --out, or change it with --update"
    )
