import pytest
import torch

from reelweave.train.config.model import DiTConfig
from reelweave.train.memory.dit_memory import kept_by_operators
from reelweave.train.models.dit import DiT

CONFIG = DiTConfig(hidden=48, heads=2, layers=3)


def held_by_operators(out):
    """Bytes of the activations that the operators' nodes in the graph of a forward hold, each tensor once."""
    todo, seen, held = [out.grad_fn], set(), {}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "_FunctionBackward":
            tensors = [x for x in node.saved_tensors if x is not None and x.is_floating_point()]
            held |= {x.data_ptr(): x.nbytes for x in tensors if not isinstance(x, torch.nn.Parameter)}
        todo += [parent for parent, _ in node.next_functions]
    return sum(held.values())


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_sum_over_the_sites_is_what_a_forward_keeps(packed, dtype):
    dit = DiT(CONFIG, channels=6, text_width=5)
    text = torch.randn(2, 4, 5), torch.ones(2, 4, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        if packed:
            latents = [torch.randn(6, *size) for size in [(3, 4, 6), (1, 4, 4)]]
            out = sum(x.sum() for x in dit.forward_packed(latents, torch.rand(2), *text))
            tokens = angles = 3 * 2 * 3 + 1 * 2 * 2
        else:
            out, angles = dit(torch.randn(2, 6, 3, 4, 6), torch.rand(2), *text), 3 * 2 * 3
            tokens = 2 * angles
    # Cosines and sines are there for all layers, and stay whatever is kept.
    rotation = angles * 24 * 4
    assert held_by_operators(out) - rotation == kept_by_operators(CONFIG, tokens, 2, 2 * 4, dtype)


def test_bytes_per_token():
    """16 per layer and channel in bfloat16, 2 more before the head; 8 of statistics for a norm, 4 for a head's."""
    expected = 48 * (16 * 3 + 2) + 8 * (3 * 3 + 1) + 4 * 2 * 3 * 3
    assert kept_by_operators(CONFIG, 1, 0, 0, torch.bfloat16) == expected
    assert kept_by_operators(CONFIG, 7, 0, 0, torch.bfloat16) == 7 * expected
