"""Cost fits in the report: equal to a fit made here, kept with a dataset, and refused where they cannot be trusted."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.pipelines.cli import main
from tests.browser import PHONE_PX, Browser, draw_all
from tests.thorough import thorough

WIDE = WORKLOADS["koala-wide"]
LENGTHS = (1500, 2000, 4000, 8000, 16_000, 32_000, 60_000)


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval of 200 resamples takes seconds."""
    monkeypatch.setattr("reelweave.loader.buckets.cost_fit._RESAMPLES", 10)


def measured() -> np.ndarray:
    """B, S, seconds and GiB: each shape three times, with 1 % of noise."""
    shapes = np.repeat([(batch, length) for length in LENGTHS for batch in (1, 2, 4)], 3, axis=0)
    batch, length = shapes.T.astype(float)
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal(len(shapes))
    step_s = (0.2 + 1e-5 * batch * length + 1e-9 * batch * length**2) * noise
    return np.stack([batch, length, step_s, 30 + 3e-4 * batch * length], axis=1)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "bench.csv"
    rows = [
        f"{batch:.0f},{length:.0f},{step_s!r},{gib!r}" for batch, length, step_s, gib in measured().tolist()
    ]
    path.write_text("batch,length,step_s,peak_gib\n" + "\n".join(rows))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main(["report", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fitted(batch: np.ndarray, length: np.ndarray, step_s: np.ndarray) -> np.ndarray:
    """a, b, c of least relative squares."""
    columns = np.stack([np.ones_like(batch), batch * length, batch * length**2], axis=1)
    return np.linalg.lstsq(columns / step_s[:, None], np.ones_like(step_s), rcond=None)[0]


@thorough
def test_the_numbers_are_those_of_a_fit_made_here(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--workload", "koala-wide", "--world-size", "4", "--steps", "3", "--shapes", str(bench)]
    found = said(capsys, *asked)
    fit = found["cost_fit"]
    batch, length, step_s, _ = measured().T
    a, b, c = fitted(batch, length, step_s)
    cost = fit["fits"]["linear_quadratic"]["cost"]
    assert (cost["fixed_s"], cost["token_s"], cost["square_s"]) == pytest.approx((a, b, c), rel=1e-6)
    left = np.square(a + b * batch * length + c * batch * length**2 - step_s).sum()
    assert fit["fits"]["linear_quadratic"]["r2"] == pytest.approx(
        1 - left / np.square(step_s - step_s.mean()).sum()
    )
    assert (fit["microbatches"], len(fit["shapes"]), fit["trusted"]) == (63, 21, True)
    errors = []
    for shape in fit["shapes"]:
        own, at = (shape["batch"], shape["length"]), (batch == shape["batch"]) & (length == shape["length"])
        assert (shape["measurements"], shape["step_s"]) == (3, pytest.approx(np.median(step_s[at])))
        predicted = a + b * own[0] * own[1] + c * own[0] * own[1] ** 2
        assert shape["predicted_s"]["linear_quadratic"] == pytest.approx(predicted, rel=1e-6)
        unseen = length != own[1]
        x, y, z = fitted(batch[unseen], length[unseen], step_s[unseen])
        held_out = x + y * own[0] * own[1] + z * own[0] * own[1] ** 2
        assert shape["held_out_s"]["linear_quadratic"] == pytest.approx(held_out, rel=1e-6)
        errors.append(abs(held_out / shape["step_s"] - 1))
    assert fit["fits"]["linear_quadratic"]["mean_error"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert fit["fits"]["linear_quadratic"]["worst_error"] == pytest.approx(max(errors), rel=1e-5)
    # Without a target the buckets count B * S^2 as before.
    assert not fit["used"]
    assert found["budgets"] == WIDE.budgets.model_dump(mode="json")


def test_a_target_and_memory_decide_the_buckets_and_the_page_shows_the_fit(
    bench: Path, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--workload", "koala-wide", "--world-size", "4", "--steps", "3", "--out", str(tmp_path / "page")]
    found = said(capsys, *asked, "--shapes", str(bench), "--target-step-s", "6", "--memory-gib", "75")
    fit, budgets = found["cost_fit"], found["budgets"]
    assert fit["used"]
    assert budgets["memory_tokens"] == pytest.approx(45 / 3e-4, abs=2)
    cost = budgets["cost"]
    for row in found["buckets"]:
        sample_s = cost["token_s"] * row["length"] + cost["square_s"] * row["length"] ** 2
        most = int((6 - cost["fixed_s"]) / sample_s)
        assert row["bounds"] == {"memory": budgets["memory_tokens"] // row["length"], "compute": most}
        assert row["batch"] == max(1, min(row["bounds"].values()))
    with browser.opened(tmp_path / "page/index.html", PHONE_PX) as page:
        draw_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        row = page.locator("#fits tbody tr").first.locator("td").all_inner_texts()
        assert row[1] == f"{fit['fits']['linear_quadratic']['r2']:.4f}"
        for name in ("fit", "fit-residuals", "fit-held-out"):
            assert page.locator(f"#{name} canvas").count() == 1
        text = page.inner_text("main")
        assert "can be trusted" in text
        assert "tokens per second" in text


@thorough
def test_a_fit_that_cannot_be_trusted_changes_nothing_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.csv"
    few.write_text("batch,length,step_s\n1,2000,0.1\n")
    asked = ["--workload", "koala-wide", "--world-size", "4", "--steps", "2", "--shapes", str(few)]
    found = said(capsys, *asked, "--target-step-s", "6")
    assert not found["cost_fit"]["trusted"]
    assert found["cost_fit"]["shapes"][0]["held_out_s"] == {"linear_quadratic": None, "power": None}
    assert found["budgets"] == WIDE.budgets.model_dump(mode="json")
    few.write_text("batch,length,step_s\n" + "\n".join(f"1,{length},0.1" for length in LENGTHS))
    assert main(["report", *asked, "--out", str(tmp_path / "page")]) == 0
    shown = capsys.readouterr().out
    assert "Do not trust" in shown
    assert "times hardly grow" in shown
    assert "times hardly grow" in (tmp_path / "page/index.html").read_text()


@thorough
def test_a_dataset_keeps_its_measured_shapes(
    curated: Path, bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dataset"
    shutil.copytree(curated, folder)
    assert said(capsys, str(folder))["cost_fit"] is None
    found = said(capsys, str(folder), "--shapes", str(bench), "--target-step-s", "2")
    assert found["cost_fit"]["used"]
    assert said(capsys, str(folder)) == found
    assert "can be trusted" in (folder / "report/index.html").read_text()


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        (["--target-step-s", "2"], "--target-step-s needs --shapes"),
        (["--memory-gib", "70"], "--memory-gib needs --shapes"),
        (["--shapes", "{bench}", "--target-step-s", "-1"], "--target-step-s is -1"),
        (["--shapes", "{bench}", "--memory-gib", "nan"], "--memory-gib is nan"),
        (["--shapes", "/nowhere.csv"], "--shapes /nowhere.csv"),
        (["--shapes", "{large}"], "larger than 256 KiB"),
    ],
)
def test_a_wrong_call_is_named(
    asked: list[str], wrong: str, bench: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = tmp_path / "large.csv"
    large.write_text("batch,length,step_s\n" + "1,2000,0.1\n" * 30_000)
    words = [word.format(bench=bench, large=large) for word in asked]
    assert main(["report", "--workload", "koala-wide", "--world-size", "4", *words]) == 2
    assert wrong in capsys.readouterr().err
