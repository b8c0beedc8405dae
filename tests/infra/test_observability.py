"""Alerts, dashboard and scraping, by the real Prometheus over the real exporter."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.runners.progress import Progress, write_status
from reelweave.loader.storage import open_storage
from reelweave.pipelines.metrics.curation import CURATION
from reelweave.pipelines.metrics.exporter import UP
from reelweave.pipelines.metrics.training import TRAINING
from reelweave.train.config.log import LogConfig
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.rank_records import RankRecord
from reelweave.train.measure.rank_waits import RankWaits
from tests.pipelines.report.runs import configured, recorded
from tests.ports import reserved_port
from tests.thorough import thorough

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "observability"
NAMES = {metric.name + "_total" * metric.counter for metric in (*TRAINING, *CURATION, UP)}
WAIT_S = 240

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="no Prometheus on this machine (Debian: apt install prometheus)",
)


def promtool(*words: object) -> None:
    ended = subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def expressions() -> list[str]:
    """Queries of all panels, of every run and dataset."""
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for variable, value in {"$run": ".*", "$dataset": ".*", "$__rate_interval": "5m"}.items():
        found = [query.replace(variable, value) for query in found]
    return found


@needs_prometheus
def test_the_configuration_is_valid():
    promtool("check", "config", FOLDER / "prometheus.yaml")


@needs_prometheus
def test_every_alert_fires_when_it_should_and_not_before(tmp_path):
    written = (ROOT / "tests/infra/alerts_test.yaml").read_text()
    (tmp_path / "test.yaml").write_text(written.replace("RULES", json.dumps(str(FOLDER / "alerts.yaml"))))
    promtool("test", "rules", tmp_path / "test.yaml")
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    fired = {
        case["alertname"]
        for one in yaml.safe_load(written)["tests"]
        for case in one["alert_rule_test"]
        if "exp_alerts" in case
    }
    assert fired == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}


def test_alerts_and_panels_ask_for_metrics_that_exist():
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]] + expressions()
    used = {name for query in asked for name in re.findall(r"reelweave_\w+", query)}
    assert used <= NAMES
    shown = {name for query in expressions() for name in re.findall(r"reelweave_\w+", query)}
    # What a panel computes from others, and a number of no use over time.
    assert NAMES - shown == {
        "reelweave_train_logged_timestamp_seconds",
        "reelweave_curation_noted_timestamp_seconds",
        "reelweave_step_seconds",
        "reelweave_train_slowest_rank",
    }


def test_the_page_explains_every_metric():
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert set(re.findall(r"`(reelweave_\w+)", page)) == NAMES


@contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    command = [str(word) for word in words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(WAIT_S)
            finally:
                started.kill()


def get(url: str, **query: str) -> dict:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=WAIT_S) as answer:
        return json.load(answer)


def until(found, what: str):
    """The first value that is true; an error of the connection counts as none."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if value := found():
                return value
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"no {what} in {WAIT_S} s")


@thorough
@needs_prometheus
def test_prometheus_scrapes_a_live_run_and_every_panel_has_data(tmp_path):
    run, clips = tmp_path / "run", tmp_path / "clips"
    lines = recorded(run, 40)
    configured(run, {"schedule": {"total_steps": 100}})
    (state := run / "checkpoints/step-000040/state.json").parent.mkdir(parents=True)
    state.write_text("{}")
    with RunLog(run, LogConfig(), 40, 100, writes=True) as log:
        log.write(RankRecord.of(40, RankWaits(10, 20.0, [1.0, 0.0, 2.0, 4.0], [0, 10, 0, 0], None)))
    states, sources = {"kept": 7, "failed": 1}, {"done": 1, "failed": 1}
    progress = Progress("cut", 2, 8, 30.0, 120.0, eta_s=60.0, states=states, sources=sources)
    write_status(Ledger(open_storage(clips)), progress)

    exporter = [sys.executable, "-m", "reelweave.pipelines.cli", "metrics", run, clips, "--port", 0]
    with process(*exporter) as serving:
        assert serving.stdout is not None
        said = serving.stdout.readline()
        address = urllib.parse.urlsplit(said.split()[1]).netloc
        config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(FOLDER / "alerts.yaml")]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [address]
        (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
        server = [
            "prometheus",
            f"--config.file={tmp_path}/prometheus.yaml",
            f"--storage.tsdb.path={tmp_path}/data",
        ]
        with (
            reserved_port() as port,
            process(*server, f"--web.listen-address=127.0.0.1:{port}") as prometheus,
        ):
            drain(prometheus)
            query = f"http://127.0.0.1:{port}/api/v1/query"

            def result(expression: str) -> list[dict]:
                return get(query, query=expression)["data"]["result"]

            until(lambda: result("count_over_time(reelweave_train_step[1m]) > 1"), "two scrapes")
            with (run / "metrics.jsonl").open("a") as file:  # a live run goes on
                file.writelines(json.dumps(lines[-1] | {"step": step}) + "\n" for step in range(41, 51))
            until(lambda: result("reelweave_train_step == 50"), "newer step")
            until(lambda: result("increase(reelweave_train_steps_total[1m]) > 0"), "growth of a counter")
            empty = [one for one in expressions() if not result(one)]
            assert empty == []
            rules = get(f"http://127.0.0.1:{port}/api/v1/rules")["data"]["groups"]
            health = {
                rule["name"]: (rule["health"], rule.get("lastError"))
                for group in rules
                for rule in group["rules"]
            }
            assert len(health) == 11
            assert {one for one, _ in health.values()} <= {"ok", "unknown"}, health
    assert serving.returncode == 0


def drain(started: subprocess.Popen[str]) -> None:
    """Read what a process prints, lest it stops at a full pipe."""
    assert started.stdout is not None
    threading.Thread(target=started.stdout.read, daemon=True).start()
