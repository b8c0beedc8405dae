"""Waits of every rank: read from the file that training writes, drawn with slow ranks named."""

import json
from pathlib import Path

import numpy as np
import pytest

from reelweave.pipelines.cli import main
from reelweave.pipelines.report.run.numbers import read_runs
from reelweave.pipelines.report.run.rank_waits import MOST_BINS, MOST_SHOWN, RankTable, read_rank_waits
from tests.browser import PHONE_PX, Browser, draw_all
from tests.pipelines.report.runs import RANKS, SLOW_RANK, recorded, waited
from tests.thorough import beyond, thorough


def test_waits_are_what_the_lines_say(tmp_path: Path) -> None:
    lines = waited(tmp_path, 300)
    table = read_rank_waits(tmp_path)
    wait_BR = np.array([line.wait_s for line in lines])
    assert (table.ranks, table.steps, table.unreadable) == (RANKS, 300, 0)
    assert (table.begins, table.ends) == (list(range(0, 300, 10)), list(range(10, 301, 10)))
    assert (table.least_peak_gib, table.most_peak_gib) == (60, 60 + (RANKS - 1) / 8)
    assert [row.rank for row in table.rows] == np.argsort(wait_BR.sum(0)).tolist()
    for row in table.rows:
        assert row.wait_s == pytest.approx(wait_BR[:, row.rank].sum(), abs=1e-2)
        assert row.wait_share == pytest.approx(wait_BR[:, row.rank].sum() / 300, abs=1e-4)
        assert row.shares == pytest.approx((wait_BR[:, row.rank] / 10).tolist(), abs=1e-4)
        assert row.last == (300 if row.rank == SLOW_RANK else 0)
        assert row.peak_gib == 60 + row.rank / 8


def test_a_long_run_of_many_ranks_has_few_spans_and_rows(tmp_path: Path) -> None:
    lines = waited(tmp_path, 2000, ranks=50, every=5)
    table = read_rank_waits(tmp_path)
    assert MOST_BINS // 2 < len(table.ends) <= MOST_BINS
    assert table.begins == [0, *table.ends[:-1]]
    assert table.ends[-1] == 2000
    assert (table.ranks, len(table.rows), table.rows[0].rank) == (50, MOST_SHOWN, SLOW_RANK)
    seconds = np.array(
        [10.0 / 5 * (end - begin) for begin, end in zip(table.begins, table.ends, strict=True)]
    )
    for row in table.rows:
        whole = sum(line.wait_s[row.rank] for line in lines)
        assert (np.array(row.shares, float) * seconds).sum() == pytest.approx(whole, abs=0.1)


def test_with_other_ranks_they_begin_anew(tmp_path: Path) -> None:
    waited(tmp_path, 100)
    lines = waited(tmp_path, 200, ranks=2 * RANKS, begin=100)
    table = read_rank_waits(tmp_path)
    assert (table.ranks, table.steps, table.begins[0], table.ends[-1]) == (2 * RANKS, 100, 100, 200)
    assert table.rows[-1].wait_s == pytest.approx(
        max(np.sum([line.wait_s for line in lines], axis=0)), abs=1e-2
    )


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    assert read_rank_waits(tmp_path) == RankTable(0, 0, [], [], [], None, None, 0)
    waited(tmp_path, 100)
    before = read_rank_waits(tmp_path)
    good = json.loads((tmp_path / "ranks.jsonl").read_text().splitlines()[-1]) | {"step": 110}
    wrong = [
        {"step": 100},
        {"wait_s": [1.0, -1.0, 0, 0]},
        {"wait_s": [1.0, True, 0, 0]},
        {"wait_s": []},
        {"last": [1, 2]},
        {"last": [11, 0, 0, 0]},
        {"peak_gib": [1.0]},
        {"steps": 0},
        {"steps": 111},
        {"seconds": None},
        {"seconds": -1},
        {"step": 1e300},
        {"step": 110.5},
        {"steps": 11},
        {"seconds": 1e300},
        {"wait_s": [1e300, 0, 0, 0]},
    ]
    with (tmp_path / "ranks.jsonl").open("a") as file:
        file.writelines(json.dumps(good | one) + "\n" for one in wrong)
        file.write("nothing\n" + json.dumps(good)[:20])  # the last line is being written
    after = read_rank_waits(tmp_path)
    assert after.unreadable == len(wrong) + 1
    assert (after.rows, after.ends) == (before.rows, before.ends)
    [found] = read_runs([tmp_path]).runs
    assert f"left out: {len(wrong) + 1} lines of ranks.jsonl" in "\n".join(found.warnings)


@thorough
@pytest.mark.parametrize("runs", beyond(1, [2, 1]))
def test_the_page_draws_waits_and_names_the_slow_rank(
    tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str], runs: int
) -> None:
    folders = [tmp_path / f"run-{number}" for number in range(runs)]
    for folder in folders:
        recorded(folder, 200)
        waited(folder, 200)
    out = tmp_path / "page"
    assert main(["report", *map(str, folders), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    with browser.opened(out / "index.html", PHONE_PX) as page:
        draw_all(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        for number, run in enumerate(said["runs"]):
            chart = page.locator(f"#rank-waits-{number}")
            assert chart.locator("canvas").count() == 1
            rows = [row.split("\t") for row in chart.locator("tbody tr").all_text_contents()]
            assert len(rows) == RANKS
            named = chart.locator("tbody tr").first.text_content() or ""
            assert named.startswith(f"rank {SLOW_RANK}, slow")
            assert f"{run['ranks']['rows'][0]['wait_share']:.1%}" in named
            assert "60.0 to 60.4 GiB" in (chart.text_content() or "")
