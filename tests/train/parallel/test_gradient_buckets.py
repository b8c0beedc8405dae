"""Gradients that ranks sum while the last backward of a step still runs, without a copy."""

import itertools
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from reelweave.train.config.model import DiTConfig
from reelweave.train.distributed.sent_bytes import count_sent_bytes
from reelweave.train.distributed.world import World, join
from reelweave.train.measure.timings import StepClock
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.layouts.gradient_buckets import GradientBuckets
from reelweave.train.parallel.layouts.ready_buckets import ReadyBuckets
from reelweave.train.parallel.mesh import Ranks as Grid
from reelweave.train.step.buckets import fill_buckets
from reelweave.train.step.step_losses import StepLosses
from tests.thorough import thorough
from tests.train.clips import ClipStream
from tests.train.parallel.layouts import FSDP, Case, config_of
from tests.train.ranks import Ranks

MOST = 48


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(5, 5).double() for _ in range(4)))


def test_buckets_keep_the_order_and_one_dtype():
    sizes = [
        ("a", torch.float32, 3),
        ("b", torch.bfloat16, 4),
        ("c", torch.float32, 3),
        ("d", torch.float32, 9),
    ]
    assert fill_buckets(sizes, 6) == [["a", "c"], ["d"], ["b"]]
    assert fill_buckets([], 6) == []


def test_a_bucket_begins_behind_those_before_it_however_gradients_come():
    first, second, idle = (nn.Parameter(torch.ones(2)) for _ in range(3))
    begun: list[int] = []
    ready = ReadyBuckets([[first], [second], [idle]], begun.append)
    (first.sum() + second.sum()).backward()
    assert begun == []  # not the last backward
    ready.arm()
    second.sum().backward()
    assert begun == []
    first.sum().backward()
    assert begun == [0, 1]
    ready.finish()
    assert begun == [0, 1, 2]
    first.sum().backward()
    ready.finish()
    assert begun == [0, 1, 2, 0, 1, 2]


def test_one_rank_keeps_its_gradients():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = own = torch.ones(2)
    buckets = GradientBuckets({"w": weight}, {"w": weight}, World(0, 1, torch.device("cpu")))
    buckets.sum_()
    assert weight.grad is own
    assert buckets.buffers == []


def sum_in_buckets(out: str) -> None:
    """Sums of three ranks, each with other inputs and an own number of backwards."""
    with join("cpu") as world:
        model = layers()
        weights = dict(model.named_parameters())
        for weight in weights.values():
            weight.grad = torch.ones_like(weight)
        buckets = GradientBuckets(weights, weights, world, MOST)
        kept = {name: weight.grad.data_ptr() for name, weight in weights.items()}
        begun = []
        x = torch.full((2, 5), 1.0 + world.rank, dtype=torch.float64)
        for left in reversed(range(1 + world.rank)):
            loss = model(x).square().sum()
            if not left:
                buckets.ready.arm()
                # The first layer's gradients come last.
                model[1].weight.register_post_accumulate_grad_hook(
                    lambda *_: begun.append(buckets.ready.begun)
                )
            loss.backward()
        begun.append(buckets.ready.begun)
        buckets.sum_()
        same = all(weight.grad.data_ptr() == kept[name] for name, weight in weights.items())
        told = {name: weight.grad.tolist() for name, weight in weights.items()}
    (Path(out) / f"{world.rank}.json").write_text(
        json.dumps({"begun": begun, "buckets": len(buckets.buffers), "in place": same, "sums": told})
    )


def test_ranks_sum_in_place_while_the_backward_runs(ranks: Ranks, tmp_path: Path):
    ended = ranks.run(sum_in_buckets, 3, str(tmp_path))
    assert ended.codes == [0] * 3, ended.errors
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    model, total = layers(), layers()
    for weight in total.parameters():
        weight.grad = torch.full_like(weight, 3.0)
    for rank in range(3):
        model.zero_grad()
        model(torch.full((2, 5), 1.0 + rank, dtype=torch.float64)).square().sum().backward()
        for own, weight in zip(model.parameters(), total.parameters(), strict=True):
            weight.grad += (1 + rank) * own.grad
    for rank in found:
        assert rank["in place"]
        assert rank["buckets"] == 4
        assert 0 < rank["begun"][0] < rank["begun"][1] == 4
        for name, weight in total.named_parameters():
            torch.testing.assert_close(
                torch.tensor(rank["sums"][name], dtype=torch.float64), weight.grad, rtol=1e-12, atol=0
            )


LAYOUTS = {
    "ddp": {},
    "zero": FSDP | {"shard": "optimizer"},
    "fsdp": FSDP,
    "fsdp-once": FSDP | {"reduce_gradients": "step"},
    "hsdp": {"dp_shard": 2},
    "hsdp-once": {"dp_shard": 2, "reduce_gradients": "step"},
}
MODEL = DiTConfig(hidden=24, heads=4, layers=2)
SIZES = ((1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 1, 1))


def count_in_layouts(out: str) -> None:
    """Bytes of each layout's reductions in a step of three microbatches on each of four ranks."""
    found = {}
    with join("cpu") as world:
        own, whole = sum(map(sum, SIZES[: world.rank])), sum(map(sum, SIZES))
        stream = ClipStream(sizes=SIZES[world.rank], first=own, samples=whole)
        step = list(itertools.islice(stream, len(SIZES[0])))
        for name, parallel in LAYOUTS.items():
            config = config_of(Case(dtype="float32", model=MODEL), parallel)
            layout = lay_out(config.step, Grid.of(config.parallel, world))
            layout.share()
            layout.zero_gradients()
            with count_sent_bytes() as sent:
                for _ in layout.passes(step, StepLosses("step").add, StepClock(world)):
                    pass
                behind = sent.total
                layout.sum_gradients()
            everywhere = dist.group.WORLD.group_name
            by_kind = dict.fromkeys(("reduce_scatter", "among all", "among some"), 0)
            for (group, kind), each in sent.by_group.items():
                if kind == "all_reduce":
                    by_kind["among all" if group == everywhere else "among some"] += each.bytes
                elif kind == "reduce_scatter":
                    by_kind[kind] += each.bytes
            dit = sum(weight.nbytes for weight in layout.bundle.dit.parameters())
            text = sum(weight.nbytes for weight in layout.bundle.text.parameters())
            found[name] = by_kind | {"dit": dit, "text": text, "later": sent.total - behind}
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def sent(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    out = tmp_path_factory.mktemp("sent")
    ended = ranks.run(count_in_layouts, 4, str(out))
    assert ended.codes == [0] * 4, ended.errors
    return json.loads((out / "0.json").read_text())


@thorough
@pytest.mark.parametrize("name", ["ddp", "zero"])
def test_replicas_reduce_once_in_a_step_and_within_the_backward(sent: dict[str, dict[str, int]], name: str):
    told = sent[name]
    assert told["later"] == 0
    whole = told["dit"] + told["text"]
    if name == "ddp":
        assert told["among all"] == pytest.approx(2 * 3 / 4 * whole, rel=0.02)
    else:
        assert told["reduce_scatter"] == pytest.approx(3 / 4 * whole, rel=0.15)  # rows are padded


@thorough
def test_hsdp_sums_between_replicas_once_in_a_step(sent: dict[str, dict[str, int]]):
    assert sent["hsdp"]["among some"] == sent["hsdp-once"]["among some"]
    assert sent["hsdp"]["among some"] == pytest.approx(sent["hsdp"]["dit"] / 2, rel=0.1)


@thorough
@pytest.mark.parametrize("name", ["fsdp", "hsdp"])
def test_fsdp_reduces_after_each_microbatch_or_once_in_a_step(sent: dict[str, dict[str, int]], name: str):
    assert sent[name]["reduce_scatter"] == 3 * sent[f"{name}-once"]["reduce_scatter"] > 0
