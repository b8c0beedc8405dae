"""Forecast of a curation from a run over a sample of its sources; what was worked on is kept for the real run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.assembly import (
    begin_state,
    check_model_paths,
    check_models,
    curation_state,
    model_stages,
    resolve_request,
)
from reelweave.curate.run.curate import COMMAND
from reelweave.curate.run.driver import Driver
from reelweave.curate.run.outlook.forecast import (
    Forecast,
    ForecastConfig,
    SourceCost,
    choose_sample,
    extents,
    forecast,
)
from reelweave.curate.run.outlook.work import Work, work_of
from reelweave.curate.run.runners.progress import STATUS, Progress
from reelweave.curate.run.stages.model_stages import model_digests
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.tables.columns import column, equal, filter_rows
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.sources.headers import read_headers
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import hold_lease, open_storage


def forecast_curation(
    inputs: Sequence[str],
    out: str,
    config: CurateConfig,
    rates: ForecastConfig,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Forecast:
    """Return what `curate` would give and cost, from a sample of the sources.

    Args:
        inputs: Files, folders, prefixes, addresses, lists.
        out: Folder or S3 prefix of the dataset.
        config: Configuration of all stages.
        rates: Size of the sample, and prices.
        progress: Called as the work goes on.

    Raises:
        UsageError: no source is found, or a model is not available.
        RunError: the environment failed.
    """
    check_model_paths(config)
    with hold_lease(open_storage(out, config.storage), COMMAND) as storage:
        ledger = Ledger(storage)
        sources = list_sources(inputs, config.storage)
        stages = model_stages(config)
        check_models(config, stages)
        state = curation_state(config, ledger, sources, None, stages, model_digests(stages, ledger))
        looked_at = sorted(sources, key=lambda source: digest(source.uri))[: rates.headers]
        extent = extents(sources, read_headers(looked_at, config.storage, config.probe))
        sample = choose_sample(sources, extent, rates.sample)
        if not sample:
            raise UsageError("no source with a video that can be read; there is nothing to forecast")
        driver = Driver(state, config.run, progress)
        clips = driver.decide_some({source.uri for source in sample})
        costs = _costs(sample, clips, state, driver.gpu_seconds())
        copies = config.cut.mode != "encode"
        curation_forecast = forecast(costs, sources, extent, rates, copies=copies)
        ledger.notes.write("forecast", asdict(curation_forecast))
        ledger.notes.drop(STATUS)  # nobody shall wait for a curation that has not begun
        return curation_forecast


def forecast_update(
    inputs: Sequence[str],
    out: str,
    config: CurateConfig,
    *,
    retry_failed: bool = False,
    redo_older: bool = False,
) -> list[Work] | None:
    """Return what `curate` with ``update`` would do, and what the same cost before; nothing is worked on.

    Args:
        inputs: Files, folders, prefixes, addresses, lists.
        out: Folder or S3 prefix of the dataset.
        config: Configuration of all stages.
        retry_failed: See `reelweave.curate.run.curate.curate`.
        redo_older: See there.

    Returns:
        None where there is no finished dataset.

    Raises:
        UsageError: no source is found, or a model is not available.
    """
    check_model_paths(config)
    with hold_lease(open_storage(out, config.storage), COMMAND) as storage:
        request = resolve_request(inputs, storage, config, update=True)
        if request.dataset is None:
            return None
        state = begin_state(config, request)
        if retry_failed:
            state.todo.forget_failures()
        return work_of(state, request.change, redo_older)


def _costs(
    sample: Sequence[SourceRef], clips: Partitions, state: CurationState, gpu_s: float
) -> list[SourceCost]:
    """Return the cost of each source of a sample; seconds of GPUs are divided by its clips."""
    count = len(state.inputs.listed)
    counts, clip_bytes, clip_s = np.zeros(count, np.int64), np.zeros(count), np.zeros(count)
    for table in clips:
        table = filter_rows(table, equal(table, "state", "kept"))
        source_indices = column(table, "source").to_numpy()
        counts += np.bincount(source_indices, minlength=count)
        clip_bytes += np.bincount(source_indices, column(table, "clip_bytes").to_numpy(), count)
        clip_s += np.bincount(source_indices, column(table, "duration_s").to_numpy(), count)
    num_clips = max(1, int(counts.sum()))
    return [
        SourceCost(
            uri=source.uri,
            clips=int(counts[index]),
            clip_bytes=int(clip_bytes[index]),
            clip_s=float(clip_s[index]),
            core_s=state.results.closed.cpu_s(source.uri),
            gpu_s=gpu_s / num_clips * int(counts[index]),
        )
        for source in sample
        for index in [state.results.closed.numbers[source.uri]]
    ]
