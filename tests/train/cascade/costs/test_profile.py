"""Cascades of a tiny run, measured and fitted by the commands, and the CSV between them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from torch.testing._internal.distributed.fake_pg import FakeStore

from reelweave.loader.errors import UsageError
from reelweave.pipelines.cli import main
from reelweave.train.cascade.costs.cost_model import CostModel
from reelweave.train.cascade.costs.profile_csv import MeasuredCascade, profile_csv, read_profile
from reelweave.train.cascade.costs.run_sizes import sizes_of, with_gathered_layers
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.training.cascades import usable_bytes
from reelweave.train.checkpoint.pieces import local as local_part
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import World
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.shapes import shapes
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import Ranks as GridRanks
from tests.thorough import but, thorough
from tests.train.cascade.costs.profile_ranks import BUCKETS, CONFIG, measure
from tests.train.ranks import Ranks

ROWS = [
    MeasuredCascade("text", 1, 5, 16, 24, 57, 1, 0.001, None),
    MeasuredCascade("vae", 2, 5, 16, 24, 57, 1, 0.002, 0.0),
    MeasuredCascade("dit", 2, 5, 16, 24, 57, 2, 0.5, 1.5),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made = tmp_path / "train.yaml"
    told = {
        "dataset": "is/not/opened",
        "out": str(tmp_path / "run"),
        "stream": {"buckets": BUCKETS.model_dump(mode="json")},
        "train": CONFIG.model_dump(mode="json"),
    }
    made.write_text(yaml.safe_dump(told))
    return made


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@thorough
def test_from_a_run_to_its_plan(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, costs = tmp_path / "cascades.csv", tmp_path / "costs.json"
    call = ["bench", "cascades", "--config", str(config), "--out", str(out), "--rounds", "1", "--json"]
    assert main(call) == 0
    capsys.readouterr()
    rows = read_profile(out.read_text(), "cascades.csv")
    assert [int((rows.module == module).sum()) for module in Module] == [len(shapes(BUCKETS))] * 3
    assert (rows.degree == 1).all()
    assert np.isnan(rows.peak_gib).all()
    call = ["fit", "--cascades", str(out), "--config", str(config), "--gpus", "4", "--out", str(costs)]
    assert main(call) == 0
    said = capsys.readouterr().out
    assert "memory is that of a dry run" in said
    assert "300 GB/s there are taken as given" in said
    kept = CostModel.model_validate_json(costs.read_text())
    assert kept.dit.token_bytes > 0
    assert kept.dit.states_bytes > 0
    assert all(error.rows >= 1 for error in kept.held_out.values())
    steps = [[{"frames": 5, "height": 16, "width": 24, "batch": batch} for batch in (1, 2, 4)]]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"gpus": 4, "steps": steps}))
    call = ["plan", "--trace", str(trace), "--costs", str(costs), "--degrees", "1,2", "--json"]
    assert main([*call, "--plan-out", str(tmp_path / "plan.json")]) == 0
    planned = json.loads((tmp_path / "plan.json").read_text())
    assert {row["module"] for row in planned} == {"text", "vae", "dit"}
    spent = sum(
        (row["end_s"] - row["start_s"]) * len(row["gpus"]) for row in planned if row["module"] == "dit"
    )
    assert spent >= 0.99 * sum(kept.dit.fixed_s + kept.dit.linear_s * batch * 57 for batch in (1, 2, 4))


def test_ranks_measure_the_dit_with_each_degree(tmp_path: Path, ranks: Ranks) -> None:
    ended = ranks.run(measure, 2, str(tmp_path))
    assert ended.codes == [0, 0], ended.errors
    told = [(tmp_path / f"{rank}.csv").read_text() for rank in (0, 1)]
    assert told[0] == told[1]
    rows = read_profile(told[0], "0.csv")
    counts = {module: np.bincount(rows.of(module).degree, minlength=3).tolist() for module in Module}
    count = len(shapes(BUCKETS))
    assert counts == {Module.TEXT: [0, count, 0], Module.VAE: [0, count, 0], Module.DIT: [0, count, count]}


def test_a_profile_is_read_as_it_was_written() -> None:
    rows = read_profile(profile_csv(ROWS), "cascades.csv")
    assert rows.module.tolist() == [0, 1, 2]
    assert rows.size_n3.tolist() == [[5, 16, 24]] * 3
    assert rows.degree.tolist() == [1, 1, 2]
    assert rows.seconds.tolist() == [0.001, 0.002, 0.5]
    assert np.array_equal(rows.peak_gib, [np.nan, 0.0, 1.5], equal_nan=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ((",seconds,", ",minutes,"), "no column seconds"),
        (("vae,2", "vea,2"), "line 3: module is 'vea'"),
        (("dit,2", "dit,2.5"), "line 4: batch is '2.5'"),
        (("0.5,1.5", "nan,1.5"), "line 4: seconds is 'nan'"),
        (("0.5,1.5", "0.5,-1"), "line 4: peak_gib is '-1'"),
        (("0.5,1.5", "0.5"), "line 4: peak_gib"),
        (("57,2,", "57,,"), "line 4: degree is ''"),
    ],
)
def test_a_wrong_profile_is_told_by_row_and_column(change: tuple[str, str], told: str) -> None:
    text = profile_csv(ROWS)
    assert change[0] in text
    with pytest.raises(UsageError, match=told):
        read_profile(text.replace(*change), "cascades.csv")


def test_a_profile_without_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="holds no rows"):
        read_profile(profile_csv([]), "cascades.csv")


@thorough
def test_all_modules_lie_on_a_gpu_and_the_optimizer_is_divided() -> None:
    [shape, *_] = shapes(BUCKETS)
    one, four = (sizes_of(CONFIG.step, shape, gpus) for gpus in (1, 4))
    [whole] = dry_run(CONFIG.model_copy(update={"parallel": ParallelConfig()}).step, [shape])
    assert one.states_bytes == pytest.approx(whole.state, rel=0.25)
    # docs/layouts.md: of 16 bytes of a weight 6 stay, and 10 are divided.
    assert four.states_bytes < 0.7 * one.states_bytes
    # Latents of 3 x 2 x 2 x 2 channels, four to a token, three times.
    assert four.handed_token_bytes == 3 * 4 * 24 * 4
    assert four.handed_sample_bytes == 4 * 9 * 16
    # Forward and backward, queries, keys, values and outputs, two layers of 48 float32.
    assert four.exchanged_bytes == 2 * 4 * 2 * 48 * 4


def held_bytes(config: TrainConfig, ranks: int) -> int:
    """What lies on rank 0 of a run by cascades before its first step, counted by storage."""
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=ranks)
    try:
        grid = GridRanks.of(config.parallel, World(0, ranks, torch.device("cpu")))
        layout = lay_out(config.step, grid)
        local = [local_part(one) for one in [*layout.bundle.parameters(), *layout.bundle.buffers()]]
        gradients = [weight.grad for weight in layout.weights.values() if weight.grad is not None]
        states = [one for state in layout.optimizer.state.values() for one in state.values()]
        storages = {
            one.untyped_storage()._cdata: one.untyped_storage().nbytes()
            for one in [*local, *gradients, *states]
        }
        return sum(storages.values())
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("dtype", but(["bfloat16"], ["bfloat16", "float32"], ()))
def test_shards_of_the_weights_are_counted_as_cascades_hold_them(dtype: str) -> None:
    [shape, *_] = shapes(BUCKETS)
    blocks = ParallelConfig(dp_shard=4, schedule="cascade")
    config = CONFIG.model_copy(update={"parallel": blocks, "dtype": dtype})
    found = sizes_of(config.step, shape, 8).states_bytes
    assert found == pytest.approx(held_bytes(config, 8), rel=0.01)
    optimizer = config.model_copy(update={"parallel": ParallelConfig(dp_replicate=2, dp_shard=4)})
    assert found < 0.7 * sizes_of(optimizer.step, shape, 8).states_bytes
    # Measured on whole weights, peaks lack the layers that are gathered.
    rows = read_profile(profile_csv(ROWS), "cascades.csv")
    more = with_gathered_layers(rows, config.step, 8).peak_gib - rows.peak_gib
    [found] = (more[rows.module == Module.DIT] * 2**30).tolist()
    layer = sum(one.numel() for one in Bundle(config, meta=True).dit.repeated()[0].parameters())
    # In float32 gathered layers and a whole gradient; autocast had copies of all weights in their place.
    least, most = (2, 4) if dtype == "float32" else (-2, 0)
    assert least * 4 * layer < found < most * 4 * layer
    assert more[rows.module == Module.VAE].tolist() == [0]
    assert with_gathered_layers(rows, optimizer.step, 8) is rows


def test_plans_may_use_what_the_fullest_gpu_has_left() -> None:
    assert usable_bytes(70, 5, World(0, 1, torch.device("cpu"))) == 75


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["bench", "cascades"], "cascades needs --config"),
        (["bench", "cascades", "--config", "C", "--rounds", "0"], "--rounds is 0"),
        (["fit"], "fit takes a CSV of microbatches, or --cascades CSV"),
        (["fit", "--cascades", "P"], "needs --config"),
        (["fit", "--cascades", "P", "--config", "C", "--gpus", "0"], "must be at least 1"),
        (["fit", "--cascades", "gone.csv", "--config", "C"], "gone.csv cannot be read"),
        (["fit", "--cascades", "P", "--config", "C"], "has 1 shapes, and 5 are needed"),
    ],
)
def test_wrong_calls_are_told_in_a_sentence(
    arguments: list[str], told: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "cascades.csv"
    profile.write_text(profile_csv(ROWS))
    files = {"C": str(config), "P": str(profile)}
    assert main([files.get(one, one) for one in arguments]) == 2
    assert told in capsys.readouterr().err
