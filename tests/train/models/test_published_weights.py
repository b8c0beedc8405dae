"""Weights of published transformers: mapped from their files, and to the bit what diffusers loads."""

import json
from itertools import chain

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.published.weights import INDEX, WEIGHTS, PublishedModel
from tests.train.allocated import Loading
from tests.train.diffusers_models import FAMILIES
from tests.train.published import drawn, run_config

LOADED = [
    ("wan", "float32", None),
    ("wan", "bfloat16", "9KB"),
    ("cogvideox, rotary", "bfloat16", None),
    ("cogvideox", "float32", "9KB"),
    ("hunyuan, distilled", "bfloat16", None),
    ("cosmos", "bfloat16", None),
]
"""A model, the dtype that it is asked in, and the size of its files."""


def tensors_of(model):
    return dict(chain(model.named_parameters(), model.named_buffers()))


@pytest.mark.parametrize(("variant", "dtype", "size"), LOADED)
def test_a_mapped_model_is_what_diffusers_loads(tmp_path, variant, dtype, size):
    import diffusers

    folder = tmp_path / "transformer"
    drawn(variant).save_pretrained(folder, **{"max_shard_size": size} if size else {})
    assert (folder / INDEX).exists() == (size is not None)
    name, _ = FAMILIES[variant.split(",")[0]]
    kind = getattr(diffusers, name)
    torch.manual_seed(3)
    theirs = kind.from_pretrained(folder, torch_dtype=getattr(torch, dtype), use_safetensors=True)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    ours = PublishedModel(DiffusersConfig(name=str(tmp_path), dtype=dtype), folder, name)
    model = ours.structure()
    ours.load_(model)
    # Wan draws its tables before it gets them: what is drawn next, adapters, must not depend on who loads.
    assert torch.equal(torch.get_rng_state(), state)
    found, expected = tensors_of(model), tensors_of(theirs)
    assert list(found) == list(expected)
    given = dict(ours.tensors())
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key
        assert torch.equal(given[key].to(tensor.dtype), tensor), key
        assert found[key].requires_grad == tensor.requires_grad
    assert list(found) == list(given)


def test_weights_are_mapped_and_not_read(tmp_path):
    config = run_config(tmp_path, "wan").model
    with Loading() as memory:
        model = build_denoiser(config, 24, 8)
    assert memory.read_bytes == 0
    assert memory.live == sum(buffer.nbytes for buffer in model.buffers())
    half = config.model_copy(update={"dtype": "bfloat16"})
    with Loading() as memory:
        model = build_denoiser(half, 24, 8)
    read = {name: weight for name, weight in model.named_parameters() if weight.dtype == torch.bfloat16}
    assert memory.read_bytes == 2 * sum(weight.nbytes for weight in read.values())


WRONG = {
    "a tensor is missing": ({"blocks.0.attn1.to_q.weight": None}, "lack blocks.0.attn1.to_q.weight"),
    "another shape": (
        {"blocks.0.attn1.to_q.weight": torch.zeros(3, 3)},
        r"to_q.weight has shape \[3, 3\] instead of \[32, 32\]",
    ),
}


@pytest.mark.parametrize(("changed", "said"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("meta", [False, True], ids=["whole", "by part"])
def test_weights_that_do_not_fit_are_refused(tmp_path, changed, said, meta):
    from safetensors.torch import load_file, save_file

    config = run_config(tmp_path, "wan")
    path = tmp_path / "transformer" / WEIGHTS
    weights = load_file(path) | changed
    save_file({name: weight for name, weight in weights.items() if weight is not None}, path)
    with pytest.raises(UsageError, match=said):
        dict(Bundle(config, meta=meta).initial_weights())


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"a": f"../{WEIGHTS}"}}, "a file beside it"),
        ({"weight_map": {"a": 1}}, "a file beside it"),
        ({"weight_map": ["a"]}, "a file beside it"),
        ({}, "a file beside it"),
        ([], "no JSON object"),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors"),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path, index, said):
    config = run_config(tmp_path, "wan").model
    (tmp_path / "transformer" / INDEX).write_text(json.dumps(index))
    with pytest.raises(UsageError, match=said):
        build_denoiser(config, 24, 8)
