"""What a run cost, by operation, as the report shows it."""

from pathlib import Path

import pytest

from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from reelweave.pipelines.report.numbers.curation_run import run_facts
from tests.curate.run.test_run import config
from tests.media import write_video


@pytest.mark.parametrize("run", [{}, {"part_s": 1.5}, {"isolate": True}])
def test_operations_of_a_run_are_noted_with_the_length_of_its_films(run: dict, tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    write_video(tmp_path / "films/a.mp4", (50, 40, 30), audio=True, options={"g": "25"})
    curate([str(tmp_path / "films")], str(tmp_path / "out"), config(run=run))
    facts = run_facts(open_dataset(tmp_path / "out"))
    names = [operation.operation for operation in facts.operations]
    assert {"decode", "encode", "shots: detector", "scores: motion", "verify", "rest"} <= set(names)
    assert facts.film_s == pytest.approx(4.8, abs=0.1)
    assert sum(operation.share for operation in facts.operations) == pytest.approx(1)
    assert [operation.core_s for operation in facts.operations] == sorted(
        (operation.core_s for operation in facts.operations), reverse=True
    )
    assert facts.operations[0].core_s_per_hour == pytest.approx(
        facts.operations[0].core_s / facts.film_s * 3600
    )
