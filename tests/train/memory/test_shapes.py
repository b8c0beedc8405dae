"""The shape benchmark: which microbatches it makes, and that steps of them are real."""

import pytest
import torch
import yaml

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.measured_shapes import read_measured
from reelweave.pipelines.cli import main
from reelweave.train.distributed.world import World, join
from reelweave.train.memory.shapes import measure, shapes
from tests.thorough import nightly
from tests.train.clips import tiny_config

CONFIG = tiny_config()
BUCKETS = BucketConfig(
    frames=(3, 5),
    sizes=((16, 16), (16, 24)),
    max_text_tokens=9,
    memory_tokens=400,
    compression=CONFIG.compression,
)


def test_each_bucket_has_several_sizes_up_to_what_memory_allows() -> None:
    made = shapes(BUCKETS)
    assert len({shape.bucket for shape in made}) == 4
    for bucket in {shape.bucket for shape in made}:
        own = sorted(shape.batch for shape in made if shape.bucket == bucket)
        length = next(shape.length for shape in made if shape.bucket == bucket)
        assert own[-1] == 400 // length
        assert own[:-1] == [2**power for power in range(len(own) - 1)]
        assert len(own) > 1
    tokens = [shape.batch * shape.length for shape in made]
    assert tokens == sorted(tokens)


def test_a_bucket_too_long_for_the_budget_has_one_sample() -> None:
    made = shapes(BUCKETS.model_copy(update={"memory_tokens": 10}))
    assert [shape.batch for shape in made] == [1] * 4


@nightly
def test_steps_take_time_and_longer_ones_take_longer() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with join("cpu") as world:
            rows = list(
                measure(CONFIG.step, BUCKETS.model_copy(update={"memory_tokens": 8_000}), world, rounds=1)
            )
    finally:
        torch.set_num_threads(threads)
    assert [row.batch * row.length for row in rows] == sorted(row.batch * row.length for row in rows)
    assert rows[-1].step_s > 2 * rows[0].step_s > 0
    assert {row.peak_gib for row in rows} == {None}


def test_a_shape_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("reelweave.train.parallel.layouts.parallel_model.losses", full)
    with pytest.raises(
        Exception, match=r"B = 1 of .* does not fit the GPU: lower stream\.buckets\.memory_tokens"
    ):
        next(measure(CONFIG.step, BUCKETS, World(0, 1, torch.device("cpu"))))


def test_the_command_writes_what_fit_reads(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "dataset": "is/not/opened",
        "out": str(tmp_path / "run"),
        "stream": {"buckets": BUCKETS.model_dump(mode="json")},
        "train": CONFIG.model_dump(mode="json"),
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "shapes.csv"
    assert main(["bench", "shapes", "--config", str(tmp_path / "train.yaml"), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out.replace("\n", "")
    rows = read_measured(out.read_text(), str(out), ("batch", "length", "step_s"))
    assert len(rows) == len(shapes(BUCKETS))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["shapes.csv", "train.yaml"]
    assert main(["bench", "shapes"]) == 2
