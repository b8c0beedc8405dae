"""Both runners carry rows through stages alike, and a stage that fails stops the run in words."""

import errno
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from reelweave.curate.run.runners.await_cluster import await_cluster
from reelweave.curate.run.runners.passes import plan_notes, run_pass
from reelweave.curate.run.runners.pipeline import (
    Runner,
    Stage,
    dealt,
    run_on_ray,
    run_sequentially,
    startable,
)
from reelweave.curate.run.runners.ray_cluster import cluster_size
from reelweave.curate.run.runners.ray_token import keep_token
from reelweave.curate.run.runners.reservations import Resources
from reelweave.loader.errors import RunError, UsageError
from tests.ports import reserved_port
from tests.ray_host import RESULTS, Started
from tests.thorough import beyond, nightly, thorough


def split(rows: list[dict]) -> Iterator[dict]:
    for row in rows:
        for part in range(row["parts"]):
            yield {"name": row["name"], "part": part, "data": str(part) * 1000, "scores": {row["name"]: 1.0}}


class Measure:
    """Knows how many rows this worker saw, as a loaded model would stay loaded."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, rows: list[dict]) -> Iterator[dict]:
        for row in rows:
            self.seen += 1
            yield {**row, "size": len(row.pop("data")), "seen": self.seen, "batch": len(rows)}


SLOW_S = 0.05


def slow(rows: list[dict]) -> Iterator[dict]:
    for row in rows:
        time.sleep(SLOW_S)
        yield row


def fail(rows: list[dict]) -> Iterator[dict]:
    for row in rows:
        if row["name"] == "c":
            raise RunError("s3://bucket/c cannot be written: access denied")
        yield row


def same(rows: list[dict]) -> list[dict]:
    return rows


def sleep(rows: list[dict]) -> list[dict]:
    time.sleep(3)
    return rows


@pytest.fixture(params=[run_sequentially, run_on_ray])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param is run_on_ray:
        request.getfixturevalue("ray_local")
    return request.param


ROWS = [{"name": name, "parts": parts} for name, parts in (("a", 3), ("b", 0), ("c", 2))]
PARTS = [("a", 0), ("a", 1), ("a", 2), ("c", 0), ("c", 1)]


def test_no_block_holds_the_largest_of_all(ray_local: str) -> None:
    import ray

    largest_first = [{"item": size} for size in (9, 8, 7, 3, 2, 1, 1)]
    blocks = ray.data.from_items(dealt(largest_first, 3), override_num_blocks=3).iter_internal_ref_bundles()
    found = [ray.get(ref).column("item").to_pylist() for bundle in blocks for ref in bundle.block_refs]
    assert sorted(found, reverse=True) == [[9, 3, 1], [8, 2], [7, 1]]


def test_rows_fan_out_through_all_stages(runner: Runner) -> None:
    results = list(runner(ROWS, [Stage("split", split), Stage("measure", Measure(), batch=2)]))
    rows = [result.task for result in results]
    assert sorted((row["name"], row["part"]) for row in rows) == PARTS
    assert {row["size"] for row in rows} == {1000}
    assert all(row["scores"] == {row["name"]: 1.0} for row in rows)


def test_every_second_of_a_stage_is_counted_once(runner: Runner) -> None:
    stages = [Stage("slow", slow), Stage("split", split), Stage("measure", Measure(), batch=2)]
    began, spent = time.monotonic(), defaultdict[str, float](float)
    for result in runner(ROWS, stages):
        for stage, seconds in result.seconds.items():
            spent[stage] += seconds
    elapsed_s = time.monotonic() - began
    assert spent.keys() == {"slow", "split", "measure"}
    assert spent["slow"] >= 2 * SLOW_S  # of the two tasks that come to something
    if runner is run_sequentially:
        assert sum(spent.values()) <= elapsed_s


@pytest.mark.parametrize("runner", beyond(1, [run_sequentially, run_on_ray]), indirect=True)
def test_a_pool_keeps_its_workers(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reelweave.curate.run.runners.pipeline.AT_ONCE", 2)
    rows = ({"name": name, "parts": 2} for name in "abc")
    results = list(runner(rows, [Stage("split", split), Stage("measure", Measure(), keeps=True, most=1)]))
    assert sorted(result.task["seen"] for result in results) == [1, 2, 3, 4, 5, 6]


def test_no_task_is_made_before_it_is_needed() -> None:
    ahead: list[int] = []
    done: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(9):
            ahead.append(number - len(done))
            yield number

    cost = run_pass("rows", tasks(), [Stage("same", list)], "sequential", done.append)
    assert (cost.tasks, done) == (9, list(range(9)))
    assert max(ahead) == 0


def test_no_rows_are_no_work(runner: Runner) -> None:
    assert list(runner([], [Stage("measure", Measure())])) == []


def test_a_stage_that_fails_says_why(runner: Runner) -> None:
    with pytest.raises(RunError, match="s3://bucket/c cannot be written: access denied"):
        list(runner(ROWS, [Stage("fail", fail)]))


@thorough
def test_stages_that_do_not_fit_side_by_side_share_the_processors(ray_local: str) -> None:
    cpus = 2.0  # of two: a worker of either pool would hold them all
    stages = [
        Stage("split", split, cpus=cpus, memory_mb=50),
        Stage("size", Measure(), keeps=True, cpus=cpus),
        Stage("again", same, batch=2, keeps=True, cpus=cpus),
    ]
    stages = [replace(stage, max_silence_s=60.0) for stage in stages]
    results = list(run_on_ray(ROWS, stages))
    assert sorted((one.task["name"], one.task["part"]) for one in results) == PARTS


def test_a_cluster_that_never_grows_is_waited_for_so_long(ray_local: str) -> None:
    seen: list[Resources] = []
    await_cluster(Resources(2), 0.0, seen.append)
    assert seen == []
    # How often it looks until then is the machine's affair; the next test counts the looks.
    words = "2 of the 3 CPUs of run.wait_for_cpus and 0 of the 1 GPUs of run.wait_for_gpus"
    with pytest.raises(RunError, match=words):
        await_cluster(Resources(3, 1), 0.2, seen.append, poll_s=0.1)
    assert {(there.cpus, there.gpus) for there in seen} <= {(2, 0)}


def test_a_cluster_is_asked_for_what_it_lacks_until_it_is_there(ray_local: str) -> None:
    """Ray hands a request to its first or its second autoscaler, and what was asked before may decide to which."""
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL
    from ray.autoscaler.v2.sdk import get_cluster_resource_state
    from ray.experimental.internal_kv import _internal_kv_get, internal_kv_get_gcs_client

    def requested() -> list[dict[str, float]]:
        first = json.loads(_internal_kv_get(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]")
        state = get_cluster_resource_state(internal_kv_get_gcs_client())
        second = [
            dict(bundle.request.resources_bundle)
            for constraint in state.cluster_resource_constraints
            for bundle in constraint.resource_requests
            for _ in range(bundle.count)
        ]
        return sorted(first + second, key=str)

    cluster_size()
    requests: list[list[dict[str, float]]] = []

    def growing() -> Resources:
        requests.append(requested())
        return Resources(8, len(requests) - 1)

    seen: list[Resources] = []
    await_cluster(Resources(4, 2), 60.0, seen.append, growing, poll_s=0.01)
    assert [there.gpus for there in seen] == [1]
    assert requests == [[], *[[{"CPU": 1}] * 4 + [{"GPU": 1}] * 2] * 2]
    assert requested() == []


def test_a_run_in_which_nothing_happens_any_more_stops_in_words(ray_local: str) -> None:
    stage = Stage("sleep", sleep, max_silence_s=1.0)
    with pytest.raises(RunError, match=r"no worker gave a result for 1 s; .* run the same command again"):
        list(run_on_ray(ROWS, [stage]))


@nightly
def test_a_stage_may_be_silent_for_as_long_as_it_says(ray_local: str) -> None:
    stages = [Stage("sleep", sleep, max_silence_s=60.0), Stage("quick", same, max_silence_s=1.0)]
    assert len(list(run_on_ray(ROWS[:1], stages))) == 1


def test_an_error_inside_ray_ends_in_words(ray_local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def wait(*_: object, **__: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(ray, "wait", wait)
    with pytest.raises(RunError) as failed:
        list(run_on_ray(ROWS, [Stage("same", same)]))
    said = str(failed.value)
    assert "Ray itself failed" in said
    assert "OSError: [Errno 22] Invalid argument" in said
    assert "run the same command again" in said
    logs = Path(said.split("logs are in ")[1].split(";")[0])
    assert "in wait" in (logs / "ray-data" / "ray-data.log").read_text()


def broken() -> None:
    raise LookupError("a bug of ours")


class Unreadable:
    def __reduce__(self) -> tuple[object, ...]:
        return broken, ()


def unreadable(rows: list[dict]) -> list[Unreadable]:
    return [Unreadable() for _ in rows]


@thorough
def test_a_bug_of_ours_is_not_said_to_be_one_of_ray(ray_local: str) -> None:
    with pytest.raises(LookupError, match="a bug of ours"):
        list(run_on_ray(ROWS[:1], [Stage("unreadable", unreadable)]))


def test_a_killed_worker_costs_nothing(ray_local: str, tmp_path: Path) -> None:
    marker = tmp_path / "died"

    def die_once(rows: list[dict]) -> list[dict]:
        import os
        import signal

        if rows[0]["name"] == "c" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    results = list(run_on_ray(ROWS, [Stage("die", die_once)]))
    assert marker.exists()
    assert sorted(result.task["name"] for result in results) == ["a", "b", "c"]


STOPPED = """
import os, signal, sys, time
from reelweave.curate.run.runners.pipeline import Stage, run_on_ray
from reelweave.pipelines.terminal.stop_signal import raise_at_sigterm
driver = os.getpid()

def stop(rows):
    os.kill(driver, signal.SIGTERM)
    time.sleep(3600)

with raise_at_sigterm() as signalled:
    try:
        list(run_on_ray([{"n": 1}], [Stage("stop", stop)]))
    except KeyboardInterrupt:
        print("stopped", signalled.heard, flush=True)
"""


def test_on_ray_sigterm_stops_a_run_as_ctrl_c_does(ray_local: str) -> None:
    """Ray's own handler writes a stack and aborts."""
    env = {**os.environ, "RAY_ADDRESS": ray_local}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped True\n", "")


UNSTARTED = """
import json, os, sys
from reelweave.curate.run.runners.pipeline import Stage, run_on_ray
from reelweave.loader.errors import RunError, UsageError
for environment in json.loads(sys.argv[1]):
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        list(run_on_ray([{"n": 1}], [Stage("same", list)]))
    except RunError as error:
        print(error)
    os.environ.clear()
    os.environ.update(before)
"""


def test_ray_writes_nothing_to_the_terminal_and_is_started_again_when_its_start_times_out(
    ray_started: Started,
) -> None:
    assert (ray_started.results, ray_started.errors) == (RESULTS, "")


def test_ray_is_told_the_processors_of_this_process_and_not_of_the_machine(ray_started: Started) -> None:
    assert ray_started.processors == 1


def test_ray_starts_no_worker_before_there_is_work(ray_started: Started) -> None:
    assert ray_started.idle_workers == 0
    assert ray_started.folder_mode == 0o700


@thorough
def test_workers_are_started_while_it_runs_as_measured(ray_local: str) -> None:
    rows = [{"name": str(number), "parts": 2} for number in range(60)]
    stages = [Stage("split", split, cpus=0.5), Stage("slow", slow, keeps=True, cpus=0.6, memory_mb=1)]
    cost = run_pass("rows", rows, stages, "ray", lambda _: None)
    assert cost.kept.most["slow"] in (2, 3)  # of 0.6 each; without the first stage, once it has ended, three
    assert cost.kept.held_s["slow"] < 3 * cost.wall_s
    (note,) = plan_notes([cost])
    assert 0 < note["busy"]["slow"] < 1


@nightly
def test_a_few_tasks_get_no_more_workers_than_they_can_use(ray_local: str) -> None:
    rows = [{"name": str(number), "data": "", "parts": 1} for number in range(6)]
    done: list[dict] = []
    cost = run_pass("rows", rows, [Stage("size", Measure(), 2, keeps=True, cpus=0.05)], "ray", done.append)
    assert len(done) == len(rows)
    assert cost.kept.most["size"] == 3  # 40 find room


def test_first_runs_side_by_side_have_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    folder, together = tmp_path / ".ray", Barrier(16)

    def token(_: int) -> str:
        together.wait()
        keep_token(folder)
        return (folder / "auth_token").read_text()

    with ThreadPoolExecutor(16) as runs:
        (found,) = set(runs.map(token, range(16)))
    assert len(found) == 64
    assert [path.name for path in folder.iterdir()] == ["auth_token"]
    assert (folder / "auth_token").stat().st_mode & 0o077 == 0


def test_a_token_given_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "given")
    keep_token(tmp_path / ".ray")
    assert not (tmp_path / ".ray").exists()


def test_without_a_home_processes_inherit_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    keep_token(tmp_path / "no home" / ".ray")
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert not list(tmp_path.iterdir())


def test_a_cluster_that_is_not_there_is_missed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with reserved_port() as port:  # where nobody listens
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            monkeypatch.setenv("RAY_ADDRESS", address)
            with pytest.raises(
                RunError, match=rf"RAY_ADDRESS={address} cannot be joined: ConnectionRefusedError"
            ):
                list(run_on_ray(ROWS, [Stage("same", same)]))


@thorough
def test_a_ray_that_does_not_start_says_why() -> None:
    reasons = {
        "RAY_ADDRESS=127.0.0.1": "the Ray cluster at RAY_ADDRESS=127.0.0.1 cannot be joined: ValueError",
        "RAY_TMPDIR=/dev/null": "Ray cannot start on this machine: NotADirectoryError",
    }
    environments = json.dumps([dict([one.split("=")]) for one in reasons])
    done = subprocess.run(
        [sys.executable, "-c", UNSTARTED, environments],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    said = done.stdout.splitlines()
    assert len(said) == len(reasons)
    for line, words in zip(said, reasons.values(), strict=True):
        assert line.startswith(words)


def test_without_ray_this_process_does_the_work_unless_a_cluster_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    kind, note = startable("ray")
    assert (kind, [note]) == ("sequential", caplog.messages)
    assert "pip install 'reelweave[ray]'" in str(note)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    with pytest.raises(UsageError, match=r"RAY_ADDRESS=head:6379 needs Ray, .*'reelweave\[ray\]'"):
        startable("ray")


def test_without_a_part_of_ray_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Ray alone is installed, without its extra."""
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(UsageError, match=r"Ray Data cannot be imported .*'reelweave\[ray\]'"):
        startable("ray")
