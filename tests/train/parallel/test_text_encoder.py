"""A frozen text encoder may be divided over ranks or stay on the host: a run has the same bits."""

import json

import pytest
import torch
from pydantic import ValidationError

from reelweave.loader.buckets.assignment import Bucket
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.text import TransformersTextConfig
from reelweave.train.memory.dry_run import dry_run
from reelweave.train.memory.shapes import StepShape
from reelweave.train.models.encoders.text import TransformersTextEncoder
from reelweave.train.parallel.mesh import Mesh
from reelweave.train.parallel.text_encoder import placement
from tests.thorough import beyond, but, thorough
from tests.train import published
from tests.train.memory.test_dry_run import step_of
from tests.train.parallel.layouts import FSDP, Case
from tests.train.parallel.test_layouts import metrics_of, tensors
from tests.train.parallel.text_ranks import LAYOUTS, run_texts, text_config

SHAPES = [StepShape(Bucket(5, 16, 16), 2, 0)]


def encoder(folder, **update):
    text = published.publish_text(folder, kind="UMT5", **update)
    return text | {"kind": "transformers", "max_text_tokens": 5}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return encoder(tmp_path_factory.mktemp("umt5"))


@pytest.mark.parametrize(
    ("size", "names"),
    but(
        [(2, ["zero"])],
        [(2, ["zero"]), (4, ["two nodes", "fsdp"]), (2, ["replicas"]), (4, ["ring", "stages"])],
        (),
    ),
)
def test_a_run_has_the_same_bits_wherever_its_encoder_is(size, names, tmp_path, ranks, text):
    out, placements = tmp_path, ["shard"] + ["offload"] * (size == 2)
    ended = ranks.run(run_texts, size, str(out), text, names, ["whole", *placements])
    assert ended.codes == [0] * size, ended.errors
    for name in names:
        case, node = LAYOUTS[size][name]
        whole = tensors(out / name / "whole")
        weights = json.loads((out / name / "whole" / "held-0.json").read_text())
        for placed in placements:
            own = out / name / placed
            for key in ("loss", "grad_norm"):
                assert metrics_of(own, key) == metrics_of(out / name / "whole", key), (name, placed, key)
            assert len(metrics_of(own, "loss")) == 3
            assert (own / "losses.jsonl").read_text() == (out / name / "whole" / "losses.jsonl").read_text()
            found = tensors(own)
            assert all(torch.equal(found[key], tensor) for key, tensor in whole.items()), (name, placed)
            videos = {path.name: path.read_bytes() for path in own.rglob("*.mp4")}
            assert len(videos) == 3
            assert videos == {path.name: path.read_bytes() for path in (out / name / "whole").rglob("*.mp4")}
            held = [json.loads((own / f"held-{rank}.json").read_text()) for rank in range(size)]
            near = node // case.parallel.get("pp", 1)
            assert sum(held[:near]) == weights * (1 if placed == "shard" else near), (name, placed)


@pytest.mark.parametrize(
    ("parallel", "ranks", "chosen"),
    [
        ({}, 4, "whole"),
        (FSDP, 4, "shard"),
        ({"dp_shard": 2}, 4, "shard"),
        (FSDP | {"shard": "optimizer"}, 4, "whole"),
        ({"dp_shard": 2, "schedule": "cascade"}, 4, "whole"),
        ({"text_encoder": "shard"}, 4, "shard"),
        (FSDP | {"text_encoder": "offload"}, 4, "offload"),
    ],
)
def test_ranks_in_lockstep_divide_it_unless_told_otherwise(text, parallel, ranks, chosen):
    config = TrainConfig(text=text, parallel=ParallelConfig(**parallel))
    assert placement(config.parallel, Mesh.of(config.parallel, ranks)) == chosen


def test_what_cannot_be_is_refused():
    with pytest.raises(ValidationError, match="take offload or whole"):
        ParallelConfig(schedule="cascade", text_encoder="shard")
    with pytest.raises(ValidationError, match="a small table that is trained"):
        TrainConfig(parallel=ParallelConfig(text_encoder="offload"))


def test_weights_on_the_host_are_lent_for_a_forward_alone(text):
    encoder = TransformersTextEncoder(TransformersTextConfig(**text))
    captions = ["a cat jumps", "", "dog"]
    expected = encoder(captions)[0]
    encoder.offload_(torch.device("cpu"))
    host = [one.data_ptr() for one in encoder.parameters()]
    seen = []
    layer = encoder.model.encoder.block[1]
    layer.register_forward_pre_hook(lambda *_: seen.append(layer.layer[0].SelfAttention.q.weight.data_ptr()))
    for _ in range(2):
        assert torch.equal(encoder(captions)[0], expected)
        assert [one.data_ptr() for one in encoder.parameters()] == host
    assert not set(seen) & set(host)
    layer.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encoder(captions)
    assert [one.data_ptr() for one in encoder.parameters()] == host


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """An encoder of which most is its layers, beside a model that is small."""
    return encoder(tmp_path_factory.mktemp("wide"), width=4096)


@pytest.mark.parametrize("placed", beyond(1, ["offload", "whole"]))
def test_its_memory_is_predicted(wide, placed):
    config = text_config(Case(dtype="float32"), placed, wide)
    [found] = dry_run(config.step, SHAPES)
    _, most = step_of(config, SHAPES[0])
    assert found.step - found.state == pytest.approx(most, rel=0.02)


@thorough
def test_what_a_rank_holds_of_it_is_predicted(wide):
    weights = sum(one.nbytes for one in TransformersTextEncoder(TransformersTextConfig(**wide)).parameters())
    states, passes = {}, {}
    for placed in ("whole", "shard", "offload"):
        [found] = dry_run(text_config(Case(dtype="float32"), placed, wide).step, SHAPES, ranks=16)
        states[placed], passes[placed] = found.state, found.passes - found.state
    # Over the eight ranks of a node.
    assert states["whole"] - states["shard"] == pytest.approx(weights * 7 / 8, rel=0.01)
    assert states["whole"] - states["offload"] == weights
    # While it encodes, layers are gathered or copied, which is the most that these steps take.
    assert passes["whole"] < weights / 2 < min(passes["shard"], passes["offload"])
