"""Fixtures shared by all folders: one local Ray, a server of rank processes, and one of commands."""

import atexit
import gc
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.ray_host import Started
    from tests.train.ranks import Ranks
    from tests.warm import Warm

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Commands join the Ray of the tests, whatever token another Ray of this user writes meanwhile. A process that is given
# an address shows its token in this mode only, which starting a Ray would set too late for those forked before.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
# Threads that wait for each other spin: two test processes on two cores, of two threads each, would spend most of their
# time on that. Read when torch and numpy are imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Modules and collected tests stay: to look through them for garbage takes a third of a second, again and again.
gc.disable()


NEEDS_RAY = (
    "tests/pipelines/test_demo.py",  # first, since in `make test` it needs none yet
    "tests/curate/caption/test_caption_evidence.py::test_on_ray_the_dataset_is_the_same",
    "tests/curate/models/custom/test_custom_stages.py::test_ray_gives_the_bytes_of_one_process",
    "tests/curate/frames/test_isolate.py::test_modules_in_the_current_folder_are_no_part_of_rays_workers",
    "tests/curate/run/stages/test_clip_stages.py",
    "tests/curate/run/stages/test_footage.py",
    "tests/curate/run/test_listed_run.py::test_on_ray_the_dataset_is_the_same",
    "tests/curate/run/test_node_paths.py",
    "tests/curate/run/test_partitions.py::test_on_ray_partitions_give_the_same_bytes",
    "tests/curate/run/test_parts.py::test_on_ray_in_parts_it_has_the_same_bytes",
    "tests/curate/run/test_pipeline.py",
    "tests/curate/run/test_run.py::test_killed_on_ray_it_ends_with_the_same_bytes",
    "tests/curate/run/test_source_faults.py::test_on_a_cluster_that_was_started_elsewhere_relative_inputs_are_found",
    "tests/curate/shots/test_shots_runs.py::test_every_detector_cuts_a_source[ray]",
    "tests/loader/dataset/test_dataset.py::test_ray_reads_it",
    "tests/train/latents/test_latents_runs.py::test_captions_that_are_cut_off_are_counted[ray]",
    "tests/train/latents/test_latents_runs.py::test_workers_of_ray_write_the_same_bytes",
)
"""Node ids of the tests that use `ray_local`, which run in the same process: Ray starts once."""
NOT_STRICT = (
    # They count what torch's operators do in this thread, or until a moment, or the memory that it holds.
    "tests/train/cascade/execution/test_executor.py::test_handoffs_keep_to_their_room",
    "tests/train/parallel/test_context_models.py::test_a_layer_of_an_st_dit_exchanges_tokens_twice_each_way",
    "tests/train/parallel/test_context_models.py::test_these_exchanges_send_the_bytes_that_are_foretold",
    "tests/train/parallel/test_context_parallel.py",
    "tests/train/parallel/test_gradient_buckets.py::test_replicas_reduce_once_in_a_step",
    "tests/train/distributed/test_sent_bytes.py",
    # Their loops are other people's: torch's DDP asks for futures, which a strict group does not give.
    "tests/loader/stream/loaders/test_unchanged_scripts.py",
    "tests/loader/stream/test_frameworks.py",
    # They have ranks killed, and gloo say so.
    "tests/pipelines/sampling/test_sample_many.py::test_a_killed_run_on_two_ranks_goes_on",
    "tests/train/checkpoint/test_elastic.py::test_a_rank_that_is_killed_is_named",
    "tests/train/distributed/test_lost_rank.py",
    "tests/train/distributed/test_world.py::test_ranks_sum_and_broadcast_and_leave_no_threads_behind",
)
"""Node ids of tests with ranks that `make strict` leaves out: they are about gloo itself, or about others' loops."""
REPORTS = "tests/pipelines/report/"
"""Folder whose tests run in the same process: Chromium starts once, and their dataset is curated once."""
LONGEST = (
    *NEEDS_RAY,
    REPORTS,
    "tests/train/cascade/training/test_cascades.py",
    "tests/train/parallel/test_layouts.py",
    "tests/loader/stream/test_data_loaders.py",
    "tests/train/parallel/test_context_models.py",
    "tests/train/memory/test_dry_run.py",
    "tests/train/parallel/test_text_encoder.py",
    "tests/train/checkpoint/test_elastic.py",
    "tests/train/parallel/test_published_ranks.py",
    "tests/curate/run/test_parts.py",
    "tests/curate/run/test_run.py",
    "tests/train/sampling/latent_parallel/test_latent_parallel_ranks.py",
    "tests/train/sampling/decode/test_decode.py",
    "tests/curate/cut/test_lookahead.py",
    "tests/curate/filters/test_filters.py",
    "tests/curate/foreign/",
    "tests/curate/run/test_faults.py",
    "tests/pipelines/test_footage.py",
    "tests/train/parallel/test_fp8.py",
    "tests/curate/run/test_two_runs.py",
    "tests/train/step/test_unbiased.py",
    "tests/train/loop/",
    "tests/train/sampling/",
    "tests/train/parallel/",
    "tests/train/vae/test_vae_trainer.py",
    "tests/pipelines/sampling/",
    "tests/test_examples.py",
    "tests/test_readme.py",
    "tests/recipes/",
    "tests/test_release.py",
    "tests/infra/test_dataset_bucket.py",
)
"""Node ids that begin first, the longest first, where several processes share the tests: none waits at the end."""
LATE = {"diffusers", "hypothesis", "ray", "torch._dynamo", "transformers"}
"""Packages that only tests import: every process collects all tests, and they cost each of them 2 s."""


def pytest_configure() -> None:
    """Record only logs that reach the root: pytest looks through 900 loggers six times a test, for 0.7 ms."""
    from _pytest.logging import catching_logs

    def attach(records: Any) -> logging.Handler:
        root = logging.getLogger()
        if records.level is not None:
            records.handler.setLevel(records.level)
            records.orig_level = root.level
            root.setLevel(min(root.level, records.level))
        root.addHandler(records.handler)
        records.attached_loggers.append(root)
        return records.handler

    if "attached_loggers" in catching_logs.__slots__:  # older ones know the root alone
        catching_logs.__enter__ = attach


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process a file at a time, one of them all tests that need Ray, and one all of the reports.

    xdist's own groups (``--dist loadgroup``) do nothing under pytest 9.2, where a node's id cannot be changed.
    """
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(NEEDS_RAY):
                return "ray"
            return REPORTS if nodeid.startswith(REPORTS) else super()._split_scope(nodeid)

    return Files(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("STRICT_GROUP") == "1":  # make strict: the tests whose ranks have `tests.strict_group`
        left_out = [
            item
            for item in items
            if "ranks" not in getattr(item, "fixturenames", ()) or item.nodeid.startswith(NOT_STRICT)
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_place)
    for item in items:
        if "ray_started" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith(NEEDS_RAY):
            raise pytest.UsageError(f"{item.nodeid} uses Ray: name it in NEEDS_RAY of tests/conftest.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_EARLY] = sorted(LATE & sys.modules.keys())
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)  # by default collections take 4 % of all tests
    gc.enable()
    # Behind pytest's own last collections; else extension modules say that objects of theirs have leaked.
    atexit.register(gc.unfreeze)


def _place(item: pytest.Item) -> int:
    return next((n for n, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Ray behind the last test that needs it: idle, it takes 7 % of a processor."""
    if item.nodeid.startswith(NEEDS_RAY):
        items = item.session.items
        following = [nextitem] if "PYTEST_XDIST_WORKER" in os.environ else items[items.index(item) + 1 :]
        if not any(one is not None and one.nodeid.startswith(NEEDS_RAY) for one in following):
            item.config.stash.get(_RAY, ExitStack()).close()


_RAY = pytest.StashKey[ExitStack]()
_EARLY = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def imported_early(pytestconfig: pytest.Config) -> list[str]:
    """What collecting the tests imported of `LATE`."""
    return pytestconfig.stash[_EARLY]


@pytest.fixture(scope="session")
def ray_started(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> "Iterator[Started]":
    """What a process printed that started a Ray of two processors through our runner, and keeps it."""
    from tests.ray_host import RayHost

    with ExitStack() as stack:
        pytestconfig.stash[_RAY] = stack
        host = stack.enter_context(RayHost(tmp_path_factory.mktemp("ray") / "errors"))
        yield host.started()
    assert host.ended == (0, "")


@pytest.fixture(scope="session")
def ray_local(ray_started: "Started", pytestconfig: pytest.Config) -> str:
    """The Ray of the tests, which this process has joined; the address at which others do."""
    import ray

    ray.init(ray_started.address, log_to_driver=False, logging_level="ERROR")
    pytestconfig.stash[_RAY].callback(ray.shutdown)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray_started.address


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Ranks]":
    """Ranks forked from a server that all processes of this test run share: its imports take 7 to 15 s."""
    from tests.train.ranks import Ranks

    own = tmp_path_factory.getbasetemp()
    with Ranks(own.parent / "ranks" if "PYTEST_XDIST_WORKER" in os.environ else None) as server:
        yield server


@pytest.fixture(scope="session")
def warm() -> "Iterator[Warm]":
    from tests.warm import Warm

    with Warm() as started:
        yield started
