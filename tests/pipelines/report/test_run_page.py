"""The page of training runs in a browser: a real run, one of several ranks, both side by side, and a hostile one."""

import json
from pathlib import Path
from typing import Any

import pytest

from reelweave.pipelines.cli import main
from reelweave.pipelines.report.run.metrics import PARTS
from tests.browser import PHONE_PX, Browser, draw_all
from tests.pipelines.report.runs import cascaded, configured, recorded, trained
from tests.thorough import thorough

NASTY = "</script><img src=x onerror=alert(1)> 'quoted' \u2028"


def report(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["report", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained run, and a longer one of four ranks with cascades."""
    root = tmp_path_factory.mktemp("run pages #1")
    trained(root / "trained")
    recorded(root / "ranks", 900)
    cascaded(root / "ranks", 500)
    configured(root / "ranks", {"schedule": {"total_steps": 1000}, "optimizer": {"lr": 0.5}})
    scores = [{"step": step, "videos": 4, "metrics": {"sharpness": step / 1000}} for step in (500, 900)]
    (root / "ranks" / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scores))
    return root / "trained", root / "ranks"


def specs(opened: Any) -> dict[str, dict[str, Any]]:
    texts = opened.eval_on_selector_all(
        "figure.chart", "(all) => all.map((one) => [one.id, one.querySelector('script.spec').textContent])"
    )
    return {name: json.loads(text) for name, text in texts}


def drawn(spec: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Points of the lines of a chart by series."""
    values = spec["layer"][-1]["data"]["values"] if "layer" in spec else spec["data"]["values"]
    found: dict[str, list[tuple[float, float]]] = {}
    for value in values:
        found.setdefault(value["series"], []).append((value["x"], value["y"]))
    return found


def points(series: dict[str, Any], curve: str) -> list[tuple[float, float]]:
    means = series["curves"][curve]["mean"]
    return [(x, y) for x, y in zip(series["step"], means, strict=True) if y is not None]


def test_a_trained_run_is_drawn_with_the_numbers_of_json(
    folders: tuple[Path, Path], browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, folders[0])
    assert found["report"] == str(folders[0] / "report/index.html")
    [run] = found["runs"]
    lines = [json.loads(line) for line in (folders[0] / "metrics.jsonl").read_text().splitlines()]
    assert points(run["steps"]["series"], "loss") == [(line["step"], line["loss"]) for line in lines]
    with browser.opened(Path(found["report"])) as opened:
        draw_all(opened)
        charts = specs(opened)
        assert {
            "loss",
            "held-out",
            "train-buckets",
            "train-times",
            "held_out-times",
            "parts",
        } <= charts.keys()
        series = run["steps"]["series"]
        expected = {
            "training": points(series, "loss"),
            "trend": [tuple(one) for one in run["steps"]["loss_trend"]],
        }
        assert drawn(charts["loss"]) == expected
        for chart, curve in (("lr", "lr"), ("grad-norm", "grad_norm"), ("step-time", "step_s")):
            assert drawn(charts[chart]) == {"trained": points(series, curve)}
        whole = run["losses"]["held_out"]["whole"]["all"]
        assert drawn(charts["held-out"]) == {"held-out": points(whole, "loss")}
        bars = {value["series"]: value["value"] for value in charts["parts"]["data"]["values"]}
        assert list(bars.values()) == [run["steps"]["whole"]["parts"][part] for part in PARTS]
        rows = opened.locator("#held-out tbody tr").all_text_contents()
        assert rows == [f"held-out{step}{loss:,.4g}" for step, loss in points(whole, "loss")]
        # Videos of training stay where they are, and play from there.
        assert run["samples"]["prompts"] == ["a wave", "a <b>dog</b>"]
        videos = opened.locator("video")
        assert videos.count() == 4
        assert opened.locator(".sheet tbody th").all_text_contents() == run["samples"]["prompts"]
        opened.evaluate(
            "() => { const one = document.querySelector('video'); one.scrollIntoView(); return one.play(); }"
        )
        opened.wait_for_function("document.querySelector('video').videoWidth === 24")
        assert opened.evaluate(
            "() => { const one = new Image(); one.src = document.querySelector('video').poster;"
            " return one.decode().then(() => one.naturalWidth); }"
        )


@thorough
def test_a_long_run_of_several_ranks_with_cascades(
    folders: tuple[Path, Path], browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, folders[1])
    [run] = found["runs"]
    with browser.opened(Path(found["report"]), dark=True) as opened:
        draw_all(opened)
        charts = specs(opened)
        series = run["steps"]["series"]
        assert series["width"] == 4
        band, line = charts["memory"]["layer"]
        curve = series["curves"]["peak_gib"]
        assert [(one["low"], one["high"]) for one in band["data"]["values"]] == list(
            zip(curve["low"], curve["high"], strict=True)
        )
        assert [one["y"] for one in line["data"]["values"]] == curve["mean"]
        assert {one["label"]: one["value"] for one in charts["waits"]["data"]["values"]} == {
            f"rank {one['rank']}": one["waited_s"] for one in run["steps"]["waits"]
        }
        slices = charts["cascades-0"]["data"]["values"]
        assert [(one["panel"], one["rank"], one["start"], one["end"]) for one in slices] == sorted(
            ((one["panel"], one["rank"], one["start_s"], one["end_s"]) for one in run["timelines"]["last"]),
            key=lambda one: (one[1], one[2]),
        )
        assert drawn(charts["score-0"]) == {"ranks": [(500, 0.5), (900, 0.9)]}
        assert opened.locator(".warning").all_text_contents() == run["warnings"]
        assert "Rank 2 is slow" in run["warnings"][1]
        with opened.expect_navigation():
            opened.locator("a", has_text="open").first.click()
        assert "timeline/step-000500.html" in opened.url


def test_two_runs_are_overlaid_and_their_differences_named(
    folders: tuple[Path, Path], browser: Browser, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = report(capsys, *folders, "--out", tmp_path / "page")
    differences = {one["key"]: one["values"] for one in found["differences"]}
    assert differences["train.optimizer.lr"] == ["0.002", "0.5"]
    assert differences["train.seed"] == ["0", None]
    assert "out" not in differences
    with browser.opened(tmp_path / "page/index.html", PHONE_PX) as opened:
        draw_all(opened)
        assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        of = {run["name"]: run["steps"] for run in found["runs"]}
        assert drawn(specs(opened)["loss"]) == {
            name: [tuple(one) for one in steps["loss_trend"]] for name, steps in of.items()
        }
        rows = opened.locator("#differences-table tbody tr").all_text_contents()
        assert rows == [
            one + "".join(value or "(absent)" for value in differences[one]) for one in differences
        ]
        opened.evaluate("document.querySelector('video').play()")
        opened.wait_for_function("document.querySelector('video').videoWidth === 24")


@thorough
def test_without_scripts_the_tables_are_there(
    folders: tuple[Path, Path], browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, folders[1])
    with browser.opened(Path(found["report"]), scripts=False) as opened:
        series = found["runs"][0]["steps"]["series"]
        assert opened.locator("#lr tbody tr").count() == len(points(series, "lr"))
        opened.locator("#lr summary").click()
        assert opened.locator("#lr tbody tr").first.is_visible()


def test_text_from_a_run_is_only_text(
    tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "<img src=x onerror=alert(1)> '"
    recorded(out, 20)
    configured(out, {NASTY: NASTY, "seed": [NASTY] * 40}, checkpoints=f"s3://{NASTY}")
    (out / "bad_samples.jsonl").write_text(
        json.dumps(dict.fromkeys(("key", "shard", "reason"), NASTY)) + "\n"
    )
    step = {
        "step": 30,
        "of": "train",
        "whole": {"loss": 1, "samples": 1},
        "by_bucket": {NASTY: {"loss": 1.5}},
    }
    with (out / "losses.jsonl").open("a") as file:
        file.write(
            json.dumps(step) + "\n" + json.dumps({"step": 31, "of": "train", "by_bucket": [NASTY]}) + "\n"
        )
    (out / "scores.jsonl").write_text(json.dumps({"step": 3, "metrics": {NASTY: 0.5}}) + "\n")
    videos = [{"prompt": NASTY, "failed": NASTY}, {"prompt": "up", "file": "../../../secret.mp4"}]
    for number, text in ((1, json.dumps({"weights": NASTY, "videos": videos})), (2, "[" * 9999)):
        folder = out / "validation" / f"step-{number:06d}"
        folder.mkdir(parents=True)
        (folder / "validation.json").write_text(text)
    found = report(capsys, out)
    with browser.opened(Path(found["report"])) as opened:
        draw_all(opened)
        assert opened.locator("h1").text_content() == out.name
        assert opened.locator("img, video").count() == 0
        assert NASTY in found["runs"][0]["losses"]["train"]["by_bucket"]
        assert f"failed: {NASTY}" in opened.locator(".sheet td").all_text_contents()


def test_folders_that_are_no_run_are_refused_in_words(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert all(name in said for name in ("no finished dataset (manifest.json", "metrics.jsonl", "train.yaml"))
    assert main(["report", str(folders[0]), str(tmp_path)]) == 2
    assert f"{tmp_path} is no training run" in capsys.readouterr().err
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["report", str(folders[0]), "--out", str(tmp_path)]) == 2
    assert "other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_run_that_has_not_begun_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configured(tmp_path, {"schedule": {"total_steps": 5}})
    [run] = report(capsys, tmp_path)["runs"]
    assert run["warnings"] == ["No step is recorded yet."]
    assert run["total_steps"] == 5
    assert "0 of 5" in (tmp_path / "report/index.html").read_text()
