"""Two datasets side by side: the numbers are those of their tables, and the page shows them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reelweave.loader.dataset import Content, Dataset, ShardRecord, open_dataset, publish
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from tests.bench.report_gallery import sample_row
from tests.browser import PHONE_PX, Browser, draw_all

NASTY = "motion</script><img src=x onerror=alert(1)>\u2028"


def write(folder: Path, numbers: range, **filters: object) -> Dataset:
    """Write the tables of a dataset; every fourth clip is below a threshold, and some scores are missing."""
    drawn = np.random.default_rng(0)
    samples, accounting, scores = [], [], []
    for number in numbers:
        key = f"<b>{number:03}"
        span = {"source": f"films/{number // 3}.mp4", "start_s": 0.0, "end_s": 1.0 + number}
        kept = number % 4 != 0
        decided = (
            {"state": "kept", "stage": "write"} if kept else {"state": "filtered", "stage": "filter.motion"}
        )
        given = {"reason": "", "score": None, "threshold": None, "duplicate_of": None}
        accounting.append({"key": key, **span, **decided, **given})
        own = {"motion": number / 7, **({NASTY: 1.0 + number % 5} if number > 3 else {})}
        scores.append({"key": key, **span, "state": decided["state"], "scores": own})
        if kept:
            samples.append(sample_row(key, span, own, number, drawn) | {"shard": "shards/000000.tar"})
    said = {"curate": {"filters": filters, "embed": {"frames": 8}}, "out": str(folder)}
    shards = [ShardRecord("shards/000000.tar", 1 << 20, "0" * 64, samples)] if samples else []
    publish(open_storage(folder), shards, Content(accounting, scores, config=said))
    return open_dataset(folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    root = tmp_path_factory.mktemp("pair")
    first = write(root / "old" / "dataset", range(40), min_motion=0.5, text=NASTY)
    return [first, write(root / "new" / "dataset", range(30, 90), min_motion=0.75, max_motion=9)]


def said(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["report", *map(str, words), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_numbers_are_those_of_the_tables(pair: list[Dataset], capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, *(one.storage.root for one in pair))
    assert found["report"] is None
    assert [one["name"] for one in found["datasets"]] == ["old/dataset", "new/dataset"]
    assert [one["totals"]["samples"] for one in found["datasets"]] == [30, 45]
    keys = [set(one.index.column("key").to_pylist()) for one in pair]
    assert found["keys"]["common"] == len(keys[0] & keys[1]) == 8
    for own, mine, other in ((0, keys[0], keys[1]), (1, keys[1], keys[0])):
        assert found["keys"]["only"][own]["count"] == len(mine - other)
        assert set(found["keys"]["only"][own]["first"]) <= mine - other
    for stage in found["stages"]:
        for place, one in enumerate(pair):
            rows = Counter((row["state"], row["stage"]) for row in one.accounting.to_pylist())
            assert stage["rows"][place] == rows[stage["state"], stage["stage"]]
    scores = {one["name"]: one for one in found["scores"]}
    assert set(scores) == {"motion", NASTY}
    for name, one in scores.items():
        for place, dataset in enumerate(pair):
            rows = dataset.scores.to_pylist(maps_as_pydicts="strict")
            values = [row["scores"][name] for row in rows if name in row["scores"]]
            assert one["clips"][place] == len(values)
            assert one["mean"][place] == pytest.approx(np.mean(values))
            assert one["counts"][place] == np.histogram(values, one["edges"])[0].tolist()
    assert scores["motion"]["min_threshold"] == [0.5, 0.75]
    assert scores["motion"]["max_threshold"] == [None, 9]
    different = {one["key"]: one["values"] for one in found["differences"]}
    assert different["curate.filters.min_motion"] == ["0.5", "0.75"]
    assert different["curate.filters.max_motion"] == [None, "9"]
    assert not {"out", "reelweave.curate.embed.frames"} & different.keys()


def test_the_page_shows_them(
    pair: list[Dataset], tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, *(one.storage.root for one in pair), "--out", tmp_path / "page")
    for options in ({}, {"width": PHONE_PX, "dark": True}):
        with browser.opened(Path(found["report"]), **options) as page:
            draw_all(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= options.get("width", 1280)
            assert page.locator("main b, main img").count() == 0
            rows = page.locator("#summary tbody tr").all_text_contents()
            assert "clips kept3045" in rows
            assert "keys that only it has2237" in rows
            assert page.locator("#differences-table tbody tr").count() == len(found["differences"])
            motion = next(place for place, one in enumerate(found["scores"]) if one["name"] == "motion")
            cells = page.locator(f"#score-{motion} tbody tr td:nth-child(2)").all_text_contents()
            assert list(map(int, cells)) == found["scores"][motion]["counts"][0]


def test_folders_with_other_files_and_other_kinds_are_refused(
    pair: list[Dataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (one.storage.root for one in pair)
    assert main(["report", first, second, "--out", first]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert main(["report", first, second, "--serve"]) == 2
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    assert main(["report", first, str(tmp_path / "run")]) == 2
    assert "all are runs, or all datasets" in capsys.readouterr().err


def test_equal_datasets_differ_in_nothing(pair: list[Dataset], capsys: pytest.CaptureFixture[str]) -> None:
    root = pair[0].storage.root
    found = said(capsys, root, root)
    assert found["differences"] == []
    assert [one["count"] for one in found["keys"]["only"]] == [0, 0]
    assert main(["report", root, root]) == 0
    assert "configurations are the same" in capsys.readouterr().out


def test_datasets_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, range(0))
    found = said(capsys, tmp_path / "a", tmp_path / "b", "--out", tmp_path / "page")
    assert found["scores"] == []
    assert found["keys"]["common"] == 0
