"""A threshold moved on the page changes the counts to what curation with it then gives."""

import json
import math
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelweave.curate.filters import FilterConfig, decide
from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.cli import main
from reelweave.pipelines.commands.look.report import write_report
from reelweave.pipelines.report.buckets import default_config
from reelweave.pipelines.report.numbers.dataset import dataset_numbers
from reelweave.pipelines.report.thresholds import pack_column
from tests.browser import Browser, draw_all
from tests.media import write_video
from tests.thorough import thorough

BASE = [
    "--set=run.runner=sequential",
    "--set=run.isolate=false",
    "--set=spans.min_clip_s=0.5",
    "--set=filters.min_duration_s=0.9",
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of several lengths and sizes; one is a copy, one is too short, one has no frames."""
    folder = tmp_path_factory.mktemp("it's raw")
    write_video(folder / "a.mp4", (40, 25, 30), size=(320, 192))
    write_video(folder / "b.mp4", (45, 18), size=(192, 320), first_scene=5)
    write_video(folder / "c.mp4", (28, 36), size=(256, 256), first_scene=9)
    (folder / "copy.mp4").write_bytes((folder / "a.mp4").read_bytes())
    (folder / "empty.mp4").touch()
    out = folder / "dataset"
    assert main(["curate", str(folder), "--out", str(out), *BASE]) == 0
    return out


@pytest.fixture(scope="module")
def rows(dataset: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_dataset(dataset).scores.to_pylist(maps_as_pydicts="strict")
    assert {row["state"] for row in found} >= {"kept", "filtered"}
    return found


@pytest.fixture(scope="module")
def page(dataset: Path, browser: Browser) -> Iterator[Any]:
    """The dataset's page with all charts drawn; who moves a threshold sets it back."""
    with browser.opened(dataset / "report/index.html") as opened:
        draw_all(opened)
        yield opened


def reset(page: Any) -> None:
    page.evaluate("document.getElementById('what-if-reset').click()")
    assert page.is_hidden("#what-if")


def set_to(page: Any, key: str, value: float | None) -> dict[str, int]:
    """Write a threshold into its field, and return the counts that the page then tells."""
    page.eval_on_selector("#what-if", "(one) => one.removeAttribute('data-counted')")
    page.fill(f"#at-{key}", "" if value is None else repr(value))
    page.wait_for_selector("#what-if[data-counted]", state="attached")
    return json.loads(page.get_attribute("#what-if", "data-counted"))


def test_counts_follow_the_decisions_of_curation(page: Any, rows: list[dict[str, Any]]) -> None:
    now = FilterConfig(min_duration_s=0.9)
    for key in ("min_duration_s", "max_duration_s", "min_short_side_px", "min_motion", "max_luminance"):
        name = key.partition("_")[2]
        values = sorted({row["scores"][name] for row in rows})
        # At a value it passes; beyond it, it does not.
        for value in (values[len(values) // 2], math.nextafter(values[-1], math.inf), -1.0, None):
            then = now.model_copy(update={key: value})
            passed = [decide(row["scores"], then) is None for row in rows]
            before = [decide(row["scores"], now) is None for row in rows]
            told = set_to(page, key, value)
            assert told["go"] == sum(
                row["state"] == "kept" and not one for row, one in zip(rows, passed, strict=True)
            )
            assert told["come"] == sum(one and not was for one, was in zip(passed, before, strict=True))
            kept = [row["state"] == "kept" for row in rows]
            assert told["kept"] == sum(kept) - told["go"] + told["come"]
        reset(page)


@thorough
def test_the_command_it_tells_gives_those_counts(
    dataset: Path, rows: list[dict[str, Any]], tmp_path: Path, browser: Browser
) -> None:
    """Both at once: one threshold lets a clip in, the other takes some away."""
    own = Path(shutil.copytree(dataset, tmp_path / "own"))
    write_report(open_dataset(own), default_config(StorageConfig()))
    shortest, *_, longest = sorted(row["scores"]["duration_s"] for row in rows)
    with browser.opened(own / "report/index.html") as page:
        draw_all(page)
        assert set_to(page, "min_duration_s", None)["come"] > 0
        told = set_to(page, "max_duration_s", (shortest + longest) / 2)
        assert told["go"] > 0
        reelweave, *command = shlex.split(page.inner_text("#what-if-command"))
    assert reelweave == "reelweave"
    assert main(command) == 0
    assert open_dataset(own).manifest.totals.samples == told["kept"]


@thorough
def test_a_line_is_dragged_in_its_chart(page: Any) -> None:
    page.locator("#score-duration_s").scroll_into_view_if_needed()
    canvas = page.locator("#score-duration_s canvas").bounding_box()
    line = page.evaluate(
        """() => {
            const view = report.views.get("score-duration_s");
            return view.origin()[0] + view.scale("x")(0.9);
        }"""
    )
    x, y = canvas["x"] + line, canvas["y"] + canvas["height"] / 2
    page.eval_on_selector("#what-if", "(one) => one.removeAttribute('data-counted')")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=3)
    page.mouse.up()
    moved = float(page.input_value("#at-min_duration_s"))
    assert 0.9 < moved < 2
    page.wait_for_selector("#what-if[data-counted]", state="attached")
    assert f"filters.min_duration_s={moved:g}" in page.inner_text("#what-if-command")
    reset(page)


def test_numbers_are_those_of_the_tables(dataset: Path, rows: list[dict[str, Any]]) -> None:
    """Row by row, as a reader of the parquet files would count."""
    opened = open_dataset(dataset)
    numbers = dataset_numbers(opened, default_config(StorageConfig())).to_json()
    accounting = opened.accounting.to_pylist()
    assert {(row["state"], row["stage"]): (row["rows"], row["sources"]) for row in numbers["stages"]} == {
        of: (count, len({row["source"] for row in accounting if (row["state"], row["stage"]) == of}))
        for of, count in Counter((row["state"], row["stage"]) for row in accounting).items()
    }
    assert numbers["lost"]["count"] == sum(row["state"] != "kept" for row in accounting)
    assert len(numbers["lost"]["rows"]) == numbers["lost"]["count"]
    for source in numbers["sources"]:
        own = [row for row in accounting if row["source"] == source["source"]]
        for state in ("kept", "filtered", "duplicate", "failed"):
            assert source[state] == sum(row["state"] == state for row in own)
        kept_s = sum(row["end_s"] - row["start_s"] for row in own if row["state"] == "kept")
        assert source["kept_seconds"] == pytest.approx(kept_s)
    told = {one["name"]: one for one in numbers["scores"]}
    assert set(told) == {name for row in rows for name in row["scores"]}
    for name, one in told.items():
        values = [row["scores"][name] for row in rows if name in row["scores"]]
        assert (one["clips"], one["missing"], one["distinct"]) == (
            len(values),
            len(rows) - len(values),
            len(set(values)),
        )
        assert (one["least"], one["most"]) == (min(values), max(values))
        assert sum(map(sum, one["counts"].values())) == len(values)
        if one["distinct"] > 1 and len(one["edges"]) == len(one["counts"]["kept"]) + 1:
            total = np.sum(list(one["counts"].values()), axis=0)
            assert total.tolist() == np.histogram(values, one["edges"])[0].tolist()
    assert told["duration_s"]["min_threshold"] == 0.9
    assert told["duration_s"]["rejected"] == sum(row["scores"]["duration_s"] < 0.9 for row in rows)


@thorough
def test_json_is_what_the_page_is_made_of(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(dataset), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    opened = open_dataset(dataset)
    numbers = dataset_numbers(opened, default_config(StorageConfig())).to_json()
    assert said == {**json.loads(json.dumps(numbers)), "report": str(dataset / "report/index.html")}
    before = (dataset / "report/index.html").read_bytes()
    write_report(opened, default_config(StorageConfig()))
    assert (dataset / "report/index.html").read_bytes() == before


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0, -1.0, 3.0],
        [0.123456, -7.000001, 2147.483647, math.nan],
        [0.1 + 0.2, 1.0],
        [5e9, 0.5],
        [math.inf, -math.inf, math.nan],
        [-0.0000004, 2147.4836475],
    ],
)
def test_packed_numbers_arrive_as_they_were(values: list[float], page: Any) -> None:
    arrived = page.evaluate(f"[...unpacked({json.dumps(pack_column(np.array(values, np.float64)))})]")
    assert np.array_equal(np.array(arrived, np.float64), values, equal_nan=True)
