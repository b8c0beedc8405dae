"""python -m reelweave.train.kernels: what it says."""

import pytest
import torch

from reelweave.train.kernels.__main__ import main
from reelweave.train.kernels.providers import choose_provider

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@without_gpu
def test_without_a_gpu_there_is_nothing_to_check_and_eager_computes(capsys, monkeypatch):
    assert main(["check"]) == main(["check", "--quick"]) == 1
    assert "no GPU to check on" in capsys.readouterr().err
    monkeypatch.delenv("REELWEAVE_KERNELS", raising=False)
    assert main(["which"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("eager (")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["nvrtc", "eager"]
    monkeypatch.setenv("REELWEAVE_KERNELS", "nvrtc")
    choose_provider.cache_clear()  # a process chooses once
    assert main(["which"]) == 2
    assert "REELWEAVE_KERNELS=nvrtc cannot work here: no NVIDIA GPU" in capsys.readouterr().err
