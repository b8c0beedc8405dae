"""The stage that docs/stages.md adds does what the page says."""

import re
from pathlib import Path

from curate.config import ShardConfig
from curate.filters import FilterConfig
from curate.ledger import Ledger
from curate.records import Record, clip_result
from curate.run.clip_stages import ClipStage, clip_identity
from curate.run.model_stages import Judge
from curate.source_pass.tasks import ClipTask
from loader.storage import open_storage
from tests.media import write_video

PAGE = Path(__file__).parents[3] / "docs/stages.md"


def test_the_example_scores_a_clip_and_its_fault_is_the_clips(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 30
    names: dict = {}
    exec(block, names)
    function = names["ScoreLoops"](names["LoopConfig"]())
    loop = write_video(tmp_path / "a.mp4", (40,)).read_bytes()
    change = write_video(tmp_path / "b.mp4", (20, 20)).read_bytes()
    ledger = Ledger(open_storage(tmp_path / "ledger"))
    tasks = []
    for number, data in enumerate((loop, change, b"no video")):
        record = Record(
            "raw.mp4",
            part=number,
            source_sha256="0" * 64,
            width=160,
            height=128,
            key=f"{number:020x}",
            sha256=f"{number:064x}",
        )
        ledger.write_clip(record.clip_id, data)
        tasks.append(ClipTask(record, todo=("loop",)))
    judge = Judge(FilterConfig(**dict.fromkeys(FilterConfig.model_fields)), ShardConfig(), {})
    stage = ClipStage("loop", "config", ledger, function, clip_identity, judge)
    alike, different, broken = stage(tasks)
    assert alike.found["loop"].scores["loop"] > different.found["loop"].scores["loop"] + 0.05
    assert judge.judged(broken.record, broken.found).stage == "loop"
    assert judge.judged(alike.record, alike.found).scores.keys() == {"loop"}
    closed = ledger.closed("loop", "config", clip_result)
    assert sorted(closed.values(), key=str) == sorted((one.found["loop"] for one in stage(tasks)), key=str)
