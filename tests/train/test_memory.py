import pytest
import torch

from train.config import DiTConfig
from train.memory import kept_by_norms
from train.models.dit import DiT

CONFIG = DiTConfig(hidden=48, heads=2, layers=3)


def kept_by_operators(out):
    """Bytes of the tensors that the operators' nodes in the graph of a forward hold."""
    todo, seen, total = [out.grad_fn], set(), 0
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "_FunctionBackward":
            total += sum(x.nbytes for x in node.saved_tensors if x is not None and x.is_floating_point())
        todo += [parent for parent, _ in node.next_functions]
    return total


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_sum_over_the_sites_is_what_a_forward_keeps(packed, dtype):
    dit = DiT(CONFIG, channels=6, text_width=5)
    text = torch.randn(2, 4, 5), torch.ones(2, 4, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        if packed:
            latents = [torch.randn(6, *size) for size in [(3, 4, 6), (1, 4, 4)]]
            out = sum(x.sum() for x in dit.forward_packed(latents, torch.rand(2), *text))
            tokens = 3 * 2 * 3 + 1 * 2 * 2
        else:
            out, tokens = dit(torch.randn(2, 6, 3, 4, 6), torch.rand(2), *text), 2 * 3 * 2 * 3
    assert kept_by_operators(out) == kept_by_norms(CONFIG, tokens, 2, dtype)


def test_bytes_per_token():
    """10 per layer and channel in bfloat16, 2 more before the head, and 8 of statistics for each norm."""
    assert kept_by_norms(CONFIG, 1, 0, torch.bfloat16) == 48 * (10 * 3 + 2) + 8 * (3 * 3 + 1)
    assert kept_by_norms(CONFIG, 7, 0, torch.bfloat16) == 7 * kept_by_norms(CONFIG, 1, 0, torch.bfloat16)
