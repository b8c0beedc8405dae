"""Steps of a cluster in the report: figures recomputed from the written plan, promises that come true."""

import heapq
import html
import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from reelweave.loader.buckets.assignment import BatchSize, Bucket, BucketConfig, Budgets, assign
from reelweave.loader.buckets.cost import LinearQuadraticCost
from reelweave.loader.buckets.stats import BucketStats, bucket_stats
from reelweave.loader.buckets.taking_in import TakingIn, taking_in
from reelweave.loader.plan.balance import balance_costs
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.pipelines.cli import main
from reelweave.pipelines.plans.mixture import workload
from reelweave.pipelines.report.numbers.lengths import length_distribution
from reelweave.pipelines.report.numbers.steps.plan import plan_numbers
from reelweave.pipelines.report.numbers.workload import SAMPLES, WorkloadConfig, workload_numbers
from reelweave.pipelines.report.steps_config import StepsConfig
from tests.browser import PHONE_PX, Browser, draw_all
from tests.loader.samples import plan_index
from tests.thorough import beyond, nightly, thorough

POLICIES = ("equal_token", "dual_constraint", "same_bucket", "balanced")
WIDE = WORKLOADS["koala-wide"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main(["report", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def wide() -> dict[str, Any]:
    config = WorkloadConfig(buckets=WIDE.budgets, plan=StepsConfig(world_size=8, steps=6))
    return workload_numbers("koala-wide", config).to_json()


def test_the_json_is_the_numbers(wide: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--workload", "koala-wide", "--world-size", "8", "--steps", "6"]
    assert said(capsys, *asked) == json.loads(json.dumps(wide))


@pytest.mark.parametrize("regime", beyond(1, ["slot", "step"]))
def test_figures_of_a_policy_follow_from_the_plan_it_writes(
    regime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--world-size", "8", "--microbatches", "3", "--steps", "5", "--regime", regime]
    policies = said(capsys, "--workload", "koala-wide", *asked)["plan"]["policies"]
    assert tuple(policies) == POLICIES
    for policy, found in policies.items():
        out = tmp_path / f"{policy}.parquet"
        assert main(["plan", "koala-wide", *asked, "--policy", policy, "--plan-out", str(out), "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert found["idle_floor"] == figures["idle_floor"]
        plan = pq.read_table(out).to_pydict()
        step, rank, slot, length, batch, cost = (
            np.array(plan[name]) for name in ("step", "rank", "slot", "S", "B", "cost")
        )
        wait = slot if regime == "slot" else np.zeros_like(slot)
        loads, tokens, squares = np.zeros((3, 5, wait.max() + 1, 8))
        for sums, values in (
            (loads, cost),
            (tokens, batch * length),
            (squares, batch * length.astype(float) ** 2),
        ):
            np.add.at(sums, (step, wait, rank), values)
        series = found["series"]
        span = loads.max(axis=2).sum(axis=1)
        assert series["span"] == pytest.approx(span)
        assert series["idle"] == pytest.approx(1 - loads.mean(axis=2).sum(axis=1) / span)
        for name, values in (("compute_cv", loads), ("compute_cv_s2", squares), ("token_cv", tokens)):
            spread = (1 - values.min(axis=2) / values.max(axis=2)).mean(axis=1)
            assert series[name] == pytest.approx(spread)
            assert found[name] == pytest.approx(spread.mean())
        assert series["samples"] == np.bincount(step, weights=batch).tolist()
        assert found["throughput"] == pytest.approx(sum(series["tokens"]) / span.sum())
        # Tokens are those of the samples, without what they are padded to.
        assert sum(series["tokens"]) < tokens.sum() * (1 - 0.5 * found["padding"])
        assert found["memory"] == pytest.approx((batch * length / 144_000).mean())
        assert found["memory_most"] == pytest.approx((batch * length / 144_000).max())
        uses = {use["bucket"]: use for use in found["batches"]}
        for place, count in Counter(plan["bucket"]).items():
            own, use = batch[np.array(plan["bucket"]) == place], uses.pop(str(WIDE.buckets[place]))
            assert (use["microbatches"], use["least"], use["most"]) == (count, own.min(), own.max())
            assert use["mean"] == pytest.approx(own.mean())
        assert not uses
    assert policies["balanced"]["relative_throughput"] == pytest.approx(
        policies["balanced"]["throughput"] / policies["equal_token"]["throughput"]
    )


def test_packs_have_their_own_policies() -> None:
    steps = StepsConfig(world_size=4, steps=3, microbatches=2, regime="pack")
    figures = plan_numbers(lambda own: workload("koala-wide", 0, own), WIDE.budgets, steps, [2000])
    policies = figures.to_json()["policies"]
    assert tuple(policies) == ("equal_token", "balanced")
    assert policies["balanced"]["padding"] == 0
    assert 0.5 < policies["balanced"]["memory"] <= policies["balanced"]["memory_most"] <= 1


def test_the_bucket_table_of_a_workload_is_its_mixture(wide: dict[str, Any]) -> None:
    assert sum(row["samples"] for row in wide["buckets"]) == pytest.approx(SAMPLES, abs=60)
    for row in wide["buckets"]:
        latent = (row["frames"] - 1) // 8 + 1
        visual = latent * -(-row["height"] // 16) * -(-row["width"] // 16)
        assert row["length"] == visual + 294
        memory, compute = 144_000 // row["length"], int(3.4e9 // row["length"] ** 2)
        assert row["bounds"] == {"memory": memory, "compute": compute}
        assert row["batch"] == max(1, min(memory, compute))
        assert row["padding_share"] == pytest.approx((294 - 77) / 2 / row["length"])
    costs = {row["length"]: 0.0 for row in wide["buckets"]}
    for row in wide["buckets"]:
        costs[row["length"]] += row["cost_share"]
    total = sum(row["samples"] * row["length"] ** 2 for row in wide["buckets"])
    for length, share in costs.items():
        own = sum(row["samples"] for row in wide["buckets"] if row["length"] == length)
        assert share == pytest.approx(own * length**2 / total)


def bucket(length: int, samples: int) -> BucketStats:
    """Return a bucket of this S."""
    [stats] = bucket_stats(
        [Bucket(1, 64, 64)],
        [length],
        [BatchSize(1, "one")],
        np.array([samples]),
        np.zeros(1),
        np.zeros(1, np.int64),
        Budgets(memory_tokens=length),
    )
    return stats


def test_lengths_are_counted_on_a_logarithmic_axis() -> None:
    found = length_distribution([bucket(1024, 30), bucket(1500, 50), bucket(8192, 20)])
    assert found.edges == pytest.approx([1024 * 2 ** (place / 2) for place in range(8)])
    assert found.counts == [30, 50, 0, 0, 0, 0, 20]
    assert found.mean == pytest.approx((1024 * 30 + 1500 * 50 + 8192 * 20) / 100)
    assert (found.p50, found.p95, found.span) == (1500, 8192, 8)
    assert length_distribution([]).mean is None
    one = length_distribution([bucket(77, 1)])
    assert one.counts == [1]
    assert one.edges[0] <= 77 < one.edges[1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"compute_budget": None}, marks=nightly),
        # Half of what the longest sample costs.
        pytest.param({"compute_budget": 1e9}, marks=nightly),
        pytest.param(
            {"compute_budget": None, "cost": LinearQuadraticCost(fixed_s=0.2, token_s=2e-5, square_s=1e-9)},
            marks=thorough,
        ),
        {
            "compute_budget": None,
            "cost": LinearQuadraticCost(fixed_s=0.2, token_s=2e-5, square_s=1e-9),
            "target_step_s": 8.0,
        },
    ],
)
def test_what_is_recommended_comes_true(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = WIDE.budgets.model_copy(update=change)
    given = tmp_path / "given.yaml"
    given.write_text(
        yaml.safe_dump(
            {
                "buckets": budgets.model_dump(mode="json"),
                "plan": {"world_size": 8, "steps": 8, "microbatches": 1},
            }
        )
    )
    before = said(capsys, "--workload", "koala-wide", "--config", str(given))["plan"]
    advice = before["recommendation"]
    assert advice["changes"]
    assert advice["promised"]["throughput"] > 1.2 * before["policies"]["balanced"]["throughput"]
    assert advice["promised"]["throughput"] >= 0.99 * max(one["throughput"] for one in advice["tried"])
    pasted = tmp_path / "pasted.yaml"
    pasted.write_text(advice["report_yaml"])
    after = said(capsys, "--workload", "koala-wide", "--config", str(pasted))["plan"]
    now = after["policies"]["balanced"]
    assert {name: now[name] for name in advice["promised"]} == advice["promised"]
    assert not after["recommendation"]["changes"]
    assert after["microbatches"] == advice["microbatches"]
    stream = yaml.safe_load(advice["stream_yaml"])["stream"]
    shapes = {"frames": [1], "sizes": [[256, 256]], "compression": "wan", "max_text_tokens": 0}
    config = StreamConfig.model_validate({**stream, "buckets": {**shapes, **stream["buckets"]}})
    assert (config.microbatches, config.policy) == (advice["microbatches"], "balanced")
    assert config.buckets.cost_limit == advice["limit"]


def test_one_microbatch_per_rank_is_not_recommended_where_four_are_faster(wide: dict[str, Any]) -> None:
    tried = {one["microbatches"]: one for one in wide["plan"]["recommendation"]["tried"]}
    assert tried[1]["idle"] > 0.2 > 0.02 > tried[4]["idle"]
    assert wide["plan"]["recommendation"]["microbatches"] == 4
    assert not wide["plan"]["recommendation"]["changes"]


BUCKETS = BucketConfig(
    frames=(17, 33),
    sizes=((240, 416), (480, 832)),
    compression="adaptiveload",
    max_text_tokens=64,
    memory_tokens=50_000,
)


def outside(index: Any, config: BucketConfig) -> int:
    return len(assign(index, config).unassigned)


def test_every_change_takes_in_what_it_says() -> None:
    index = plan_index(
        frames=[40, 40, 9, 12, 40, 40, 40, 3],
        height=[480, 160, 480, 480, 400, 400, 96, 160],
        width=[832, 280, 832, 832, 400, 400, 400, 280],
    )
    config = BUCKETS.model_copy(update={"max_crop": 0.2})
    found = taking_in(index, config)
    assert found.samples == outside(index, config) == 7
    assert {change.words: change.takes_in for change in found.changes}["allow 400 x 400 pixels"] == 2
    for change in found.changes:
        wider = BucketConfig.model_validate({**config.model_dump(), **change.keys})
        assert outside(index, config) - outside(index, wider) == change.takes_in
    # The last one needs fewer frames and another size at once.
    together = found.together
    assert together is not None
    assert together.takes_in == 7
    assert outside(index, BucketConfig.model_validate({**config.model_dump(), **together.keys})) == 0
    for words in together.words:
        fewer = [change for change in found.changes if change.words in together.words]
        assert words in {change.words for change in fewer}


def test_all_samples_in_buckets_need_no_change() -> None:
    assert taking_in(plan_index([40], [480], [832]), BUCKETS) == TakingIn(0, [], None)
    assert taking_in(plan_index([], [], []), BUCKETS).samples == 0


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        (["--workload", "koala-wise", "--world-size", "4"], "did you mean koala-wide?"),
        (["--workload", "koala-wide"], "--world-size"),
        (["ds", "--workload", "koala-wide"], "not both"),
        (["--workload", "koala-wide", "--world-size", "0"], "plan.world_size"),
        (["--workload", "koala-wide", "--world-size", "4", "--serve"], "--serve"),
        (["--workload", "koala-wide", "--world-size", "4", "--set", "buckets.frames=[1]"], "buckets.frames"),
    ],
)
def test_a_wrong_call_is_named(asked: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *asked]) == 2
    assert wrong in capsys.readouterr().err


def test_a_dataset_is_planned_as_training_runs_it_and_later_reports_keep_the_cluster(
    curated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(curated, folder)
    asked = ["--world-size", "1", "--microbatches", "1", "--steps", "3"]
    limits = ["--set", "buckets.frames=[17]", "--set", "buckets.compute_budget=null"]
    found = said(capsys, str(folder), *asked, *limits)
    assert main(["plan", str(folder), *asked, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["policies"]
    for policy, one in found["plan"]["policies"].items():
        assert all(one[name] == value for name, value in planned[policy].items() if name in one)
    pasted = tmp_path / "pasted.yaml"
    pasted.write_text(found["plan"]["recommendation"]["report_yaml"])
    again = said(capsys, str(folder), "--config", str(pasted))
    promised = found["plan"]["recommendation"]["promised"]
    assert {name: again["plan"]["policies"]["balanced"][name] for name in promised} == promised
    assert again["buckets"] == found["buckets"]
    assert said(capsys, str(folder)) == again
    # A cluster that the samples cannot fill leaves the rest of the report as it is.
    large = said(capsys, str(folder), "--set", "plan.world_size=64")
    assert "cannot fill" in large["plan"]["cannot"]
    assert large["buckets"] == found["buckets"]
    # None of the samples fills this size; the page says what would take them in, and that comes true.
    none = said(capsys, str(folder), "--set", "buckets.sizes=[[1080, 1920]]")
    assert (none["assigned"], none["plan"], none["lengths"]["edges"]) == (0, None, [])
    wider = none["taking_in"]["together"]
    page = (folder / "report/index.html").read_text()
    assert html.escape(wider["yaml"]) in page
    pasted.write_text(wider["yaml"])
    assert said(capsys, str(folder), "--config", str(pasted))["assigned"] == wider["takes_in"] == 2


def test_the_work_at_a_thousand_ranks_is_bounded() -> None:
    """At 25 steps it takes 5 s of a processor; placing the microbatches one by one on a heap is the floor."""
    steps = StepsConfig(world_size=1024)
    assert steps.count * steps.world_size <= 25_600
    assert StepsConfig(world_size=65_536).count == 16
    balance_costs(np.ones(2 * steps.world_size), steps.world_size)  # compiled loops are loaded once
    began = time.process_time()
    config = WorkloadConfig(buckets=WIDE.budgets, plan=steps.model_copy(update={"steps": 1}))
    tried = workload_numbers("koala-wide", config).plan.to_json()["recommendation"]["tried"]
    spent_s = time.process_time() - began
    microbatches = steps.world_size * sum(one["microbatches"] for one in tried)
    assert microbatches <= 15 * steps.world_size
    began = time.process_time()
    loads = [0.0] * steps.world_size
    for number in range(10 * microbatches):
        heapq.heapreplace(loads, loads[0] + number % 7 + 1)
    floor_s = time.process_time() - began
    assert spent_s < 40 * floor_s


def test_the_page_shows_the_numbers_and_the_text_to_paste(
    tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page"
    asked = ["--world-size", "4", "--microbatches", "1", "--steps", "4", "--out", str(out)]
    found = said(capsys, "--workload", "koala-wide", *asked)
    assert found["report"] == str(out / "index.html")
    with browser.opened(out / "index.html", PHONE_PX) as page:
        draw_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        rows = page.locator("#policies tbody tr").all()
        shown = {
            one.locator("td").first.inner_text(): one.locator("td").all_inner_texts()[1:] for one in rows
        }
        policies = found["plan"]["policies"].values()
        assert shown["idle"] == [f"{one['idle']:.2%}" for one in policies]
        assert shown["throughput, of equal_token's"] == [
            f"{one['relative_throughput']:.2f} x" for one in policies
        ]
        assert page.locator("#stream-yaml").inner_text() == found["plan"]["recommendation"]["stream_yaml"]
        for words in found["plan"]["recommendation"]["words"]:
            assert words in page.inner_text("main")
    (out / "notes.txt").touch()
    (out / "index.html").unlink()
    assert main(["report", "--workload", "koala-wide", *asked]) == 2
    assert "holds other files" in capsys.readouterr().err


def test_people_see_the_policies_and_what_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--workload", "adaptiveload", "--world-size", "4", "--steps", "3"]) == 0
    shown = capsys.readouterr().out
    assert all(policy in shown for policy in POLICIES)
    pasted = yaml.safe_load(shown[shown.index("\nstream:") :])
    assert pasted["stream"]["policy"] == "balanced"
