import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reelweave.train.config.model import DiTConfig
from reelweave.train.models.dit import DiT
from reelweave.train.parallel import activations
from reelweave.train.parallel.activations import checkpoint_block, compile_block, offload_block
from tests.thorough import thorough
from tests.train.comparison import gradients, relative_errors

CONFIG = DiTConfig(hidden=48, heads=4, layers=2, patch=(1, 2, 2))
CHANNELS, TEXT = 4, 16


class Made(TorchDispatchMode):
    """The memory of what operators return, but for views of these weights."""

    def __init__(self, weights):
        super().__init__()
        self.others = {weight.untyped_storage()._cdata for weight in weights}
        self.found = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self.others:
                storage = leaf.untyped_storage()
                self.found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def alive(self) -> int:
        return sum(size for storage, size in self.found.values() if not storage.expired())


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """The memory of what autograd saves: sees what compiled code keeps, which runs no operators."""

    def __init__(self, weights):
        super().__init__(self.pack, lambda tensor: tensor)
        self.others = {weight.untyped_storage()._cdata for weight in weights}
        self.found = {}

    def __enter__(self):
        super().__enter__()
        return self

    def pack(self, tensor):
        if tensor.untyped_storage()._cdata not in self.others:
            self.found[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    def alive(self) -> int:
        return sum(storage.nbytes() for storage in self.found.values())


def differentiated(lay_out, watch) -> tuple[dict[str, torch.Tensor], int]:
    """The gradients of all weights, and the bytes that were kept for the backward."""
    torch.manual_seed(0)
    model = DiT(CONFIG, CHANNELS, TEXT)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    for block in model.blocks:
        lay_out(block)
    x, context = torch.randn(2, CHANNELS, 3, 8, 8), torch.randn(2, 5, TEXT)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    with watch(model.parameters()) as watched:
        loss = model(x, torch.tensor([0.2, 0.7]), context, mask).square().mean()
        kept = watched.alive()
    loss.backward()
    return gradients(model), kept


def test_blocks_that_compute_again_give_equal_gradients_and_keep_less():
    expected, everything = differentiated(lambda block: None, Made)
    kept = {}
    for policy in ("none", "selective", "full"):
        found, kept[policy] = differentiated(
            lambda block, policy=policy: checkpoint_block(block, policy), Made
        )
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items()), policy
    assert kept["none"] == everything
    assert kept["full"] < 0.15 * everything
    assert 0.3 * everything < kept["selective"] < 0.7 * everything


def offload(block):
    checkpoint_block(block, "offload")
    offload_block(block)


def test_offloaded_blocks_give_equal_gradients_and_keep_their_inputs_on_the_host(monkeypatch):
    monkeypatch.setattr(activations, "_MIN_OFFLOADED_BYTES", 1000)
    moved = []
    to_host = activations._to_host
    monkeypatch.setattr(activations, "_to_host", lambda saved: moved.append(to_host(saved)) or moved[-1])
    expected, _ = differentiated(lambda block: None, Made)
    found, kept = differentiated(offload, Made)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    # Here the host is the device: what is alive there are the copies, and not what they are of.
    _, kept_inside = differentiated(lambda block: checkpoint_block(block, "full"), Made)
    copies = sum(host.nbytes for _, host in moved if host.nbytes >= 1000)
    tokens = 2 * 3 * 4 * 4 * CONFIG.hidden * 4
    assert copies >= CONFIG.layers * tokens
    assert kept - copies <= kept_inside - (CONFIG.layers - 1) * tokens


@thorough
def test_a_compiled_block_keeps_about_its_memory_budget():
    expected, everything = differentiated(lambda block: None, Saved)
    # The partitioner of the default backend, without the compilation of what it finds.
    backend = "aot_eager_decomp_partition"
    # What goes into a block is kept in any case.
    for budget, most in ((0.6, 0.6), (0.2, 0.35)):
        torch._dynamo.reset()
        found, kept = differentiated(lambda block, share=budget: compile_block(block, share, backend), Saved)
        assert max(relative_errors(found, expected).values()) <= 1e-5
        assert kept < most * everything
