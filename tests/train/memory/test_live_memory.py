import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from reelweave.train.memory.live_memory import LiveMemory


def test_storages_count_once_and_until_they_are_freed():
    before = torch.randn(50)
    with LiveMemory() as memory:
        first = torch.randn(1000)
        second = first * 2
        view = second.view(10, 100)
        before.mul_(2)
        assert memory.live == memory.peak == 8000
        del second
        assert memory.live == 8000
        del view
        assert (memory.live, memory.peak) == (4000, 8000)


def test_what_autograd_keeps_is_in_use_until_the_backward():
    with LiveMemory() as memory:
        x = torch.randn(100, requires_grad=True)
        y = (x * 3).exp()
        assert memory.live == 2 * 400  # x, and the exponential that its gradient needs
        y.sum().backward()
        del y
        assert memory.live == 2 * 400


def test_tensors_without_data_count_as_those_with():
    def work():
        kept = [torch.randn(64, 64)]
        for _ in range(3):
            kept.append(kept[-1] @ kept[-1])
        return memory.live, memory.peak

    with LiveMemory() as memory:
        real = work()
    with FakeTensorMode(), LiveMemory() as memory:
        assert work() == real == (4 * 64 * 64 * 4, 4 * 64 * 64 * 4)
