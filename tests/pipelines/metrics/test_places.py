"""Numbers for Prometheus are those that runs and curations wrote, as its own client reads them."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.runners.progress import Progress, finish_status, write_status
from reelweave.loader.dataset.manifest import MANIFEST
from reelweave.loader.storage import open_storage
from reelweave.pipelines.metrics.curation import Curation
from reelweave.pipelines.metrics.exporter import registry_of
from reelweave.pipelines.metrics.training import TrainingRun
from reelweave.train.config.log import LogConfig
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.logs.rank_records import RankRecord
from reelweave.train.loop.logs.records import forget_after
from reelweave.train.loop.trainer import Trainer
from reelweave.train.measure.rank_waits import RankWaits
from tests.commands import reelweave
from tests.pipelines.report.runs import RANKS, configured, recorded, trained
from tests.train.clips import ClipStream, tiny_config

IntegerArray = dict[tuple[str, ...], float]


def numbers_of(text: str) -> IntegerArray:
    """Numbers by name and values of labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(*places) -> IntegerArray:
    registry = registry_of(places, pytest.fail)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def run(tmp_path) -> Iterator[Path]:
    recorded(tmp_path / "run", 40)
    configured(tmp_path / "run", {"schedule": {"total_steps": 100}})
    return tmp_path / "run"


def test_a_trained_run_is_printed_once(tmp_path):
    trained(tmp_path)
    printed = reelweave("metrics", tmp_path, "--once")
    assert printed.returncode == 0, printed.stderr
    found, name, lines = numbers_of(printed.stdout), str(tmp_path), lines_of(tmp_path)
    assert found["reelweave_train_step", name] == found["reelweave_train_planned_steps", name] == 4
    assert found["reelweave_train_loss", name] == lines[-1]["loss"]
    assert found["reelweave_checkpoint_step", name] == 4
    state = tmp_path / "checkpoints/step-000004/state.json"
    assert found["reelweave_checkpoint_timestamp_seconds", name] == state.stat().st_mtime
    held_out = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert found["reelweave_train_held_out_loss", name] == held_out[-1]["whole"]["loss"]
    assert found["reelweave_up", name] == 1


def test_the_age_of_checkpoints_in_another_place_is_known(tmp_path):
    run, began = tmp_path / "run", time.time()
    run.mkdir()
    Trainer(
        tiny_config(4, every_steps=2), ClipStream(), run, checkpoints=open_storage(tmp_path / "elsewhere")
    ).run()
    found = scraped(TrainingRun(run, "run"))
    assert found["reelweave_checkpoint_step", "run"] == 4
    assert began <= found["reelweave_checkpoint_timestamp_seconds", "run"] <= time.time()
    told = [json.loads(line)["step"] for line in (run / "checkpoints.jsonl").read_text().splitlines()]
    assert told[-1] == 4
    assert set(told) <= {2, 4}
    forget_after(run, 3)
    found = scraped(TrainingRun(run, "run"))
    assert found.get(("reelweave_checkpoint_step", "run")) in (2, None)


def test_counters_add_up_over_scrapes_and_begin_anew_with_a_resumed_run(run):
    place = TrainingRun(run, "run")
    for _ in range(2):
        found, lines = scraped(place), lines_of(run)
        assert found["reelweave_train_steps_total", "run"] == 40
        assert found["reelweave_train_samples_total", "run"] == sum(line["samples"] for line in lines)
        for key in ("read_retries", "cache_hits", "cache_misses"):
            assert found[f"reelweave_train_{key}_total", "run"] == sum(line[key] for line in lines) > 0
        assert found["reelweave_train_seconds_total", "run", "forward"] == pytest.approx(
            sum(line["forward_s"] for line in lines)
        )
        assert (
            found["reelweave_train_skipped_steps_total", "run"] == sum(line["skipped"] for line in lines) > 0
        )
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(lines[-1] | {"step": 41}) + "\n")
    assert scraped(place)["reelweave_train_steps_total", "run"] == 41
    forget_after(run, 30)
    found = scraped(place)
    assert found["reelweave_train_steps_total", "run"] == found["reelweave_train_step", "run"] == 30
    assert found["reelweave_train_planned_steps", "run"] == 100


def test_a_run_without_a_step_is_known_by_its_begin(tmp_path):
    configured(tmp_path, {"schedule": {"total_steps": 100}})
    found = scraped(TrainingRun(tmp_path, "run"))
    assert found["reelweave_train_step", "run"] == 0
    assert found["reelweave_train_planned_steps", "run"] == 100
    assert (
        found["reelweave_train_logged_timestamp_seconds", "run"] == (tmp_path / "train.yaml").stat().st_mtime
    )


def test_parts_of_the_newest_step_and_waits_of_every_rank(run):
    with RunLog(run, LogConfig(), 40, 100, writes=True) as log:
        waits = RankWaits(10, 20.0, [1.0, 0.0, 2.0, 4.0], [0, 10, 0, 0], [1.0] * RANKS)
        log.write(RankRecord.of(40, waits))
    found, last = scraped(TrainingRun(run, "run")), lines_of(run)[-1]
    waits = [found["reelweave_rank_wait_seconds", "run", str(rank)] for rank in range(RANKS)]
    assert waits == [0.1, 0.0, 0.2, 0.4]
    assert found["reelweave_step_seconds", "run", "backward"] == last["backward_s"]
    assert found["reelweave_train_peak_memory_bytes", "run"] == last["peak_gib"] * 2**30


def test_wrong_lines_cost_nothing_else(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": "x", "loss": 1e999, "samples": -5, "forward_s": [], "skipped": 3}\nnull\n')
    (run / "ranks.jsonl").write_text('{"steps": 0, "wait_s": [1]}\n{"steps": 1, "wait_s": [1, "a"]}\n')
    (run / "losses.jsonl").write_text('{"of": "held_out", "whole": 3}\n')
    found = scraped(TrainingRun(run, "run"))
    assert found["reelweave_up", "run"] == 1
    assert found["reelweave_train_samples_total", "run"] == sum(
        line["samples"] for line in lines_of(run)[:40]
    )
    assert not [key for key in found if key[0] in ("reelweave_rank_wait_seconds", "reelweave_train_step")]


def test_a_curation_at_work_and_finished(tmp_path):
    storage = open_storage(tmp_path)
    at_work = (("a.mp4", 0.5, 70.0), ("b.mp4", 0.1, 90.0))
    states = {"kept": 7, "failed": 1}
    sources = {"done": 1, "failed": 1}
    progress = Progress(
        "cut", 2, 8, 30.0, 120.0, eta_s=60.0, states=states, sources=sources, retries=3, at_work=at_work
    )
    write_status(Ledger(storage), progress)
    place = Curation(storage, "clips")
    found = scraped(place)
    assert found["reelweave_curation_done", "clips", "cut"] == 2
    assert found["reelweave_curation_planned", "clips", "cut"] == 8
    assert found["reelweave_curation_done_ratio", "clips"] == 0.25
    assert found["reelweave_curation_left_seconds", "clips"] == 60
    assert found["reelweave_curation_records", "clips", "failed"] == 1
    assert found["reelweave_sources_total", "clips", "failed"] == 1
    assert found["reelweave_sources_total", "clips", "done"] == 1
    assert found["reelweave_curation_longest_source_seconds", "clips"] == 90
    assert found["reelweave_curation_retries_total", "clips"] == 3
    assert found["reelweave_curation_finished", "clips"] == 0
    (tmp_path / MANIFEST).write_text("{}")
    assert scraped(place)["reelweave_curation_finished", "clips"] == 0  # an update of what is published
    finish_status(Ledger(storage))
    assert scraped(place)["reelweave_curation_finished", "clips"] == 1


def test_a_place_that_goes_away_is_said_once_and_costs_the_others_nothing(run, tmp_path):
    other = tmp_path / "other"
    recorded(other, 3)
    said: list[str] = []
    registry = registry_of([TrainingRun(run, "run"), TrainingRun(other, "other")], said.append)
    up = [registry.get_sample_value("reelweave_up", {"place": name}) for name in ("run", "other")]
    assert up == [1, 1]
    shutil.rmtree(other)
    for _ in range(2):
        assert registry.get_sample_value("reelweave_up", {"place": "other"}) == 0
        assert registry.get_sample_value("reelweave_train_step", {"run": "run"}) == 40
    assert len(said) == 1
    assert str(other) in said[0]
    recorded(other, 5)
    assert registry.get_sample_value("reelweave_train_step", {"run": "other"}) == 5


def test_what_is_wrong_is_named_before_anything_is_served(run, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, status, word in [
        ((empty,), 1, str(empty)),
        ((tmp_path / "nowhere",), 1, "nowhere"),
        ((run, run), 2, "twice"),
        ((run, "--port", 70_000), 2, "--port"),
    ]:
        ended = reelweave("metrics", *words)
        assert ended.returncode == status
        assert word in ended.stderr
        assert "Traceback" not in ended.stderr
