"""python -m reelweave.train.kernels: what it installs, what it leaves alone, what it says."""

import pytest
import torch

from reelweave.train.kernels.__main__ import main
from reelweave.train.kernels.cuda import library
from reelweave.train.kernels.providers import chosen

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
# Answers as nvcc does, and writes 13 bytes as the library; or fails, where there is a file `broken` beside it.
NVCC = """#!/bin/sh
case "$1" in
--version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit;;
--list-gpu-arch) echo compute_80; echo compute_90; exit;;
esac
test -e "$(dirname "$0")/broken" && { echo "binding.cpp(7): error: it is broken" >&2; exit 2; }
while test "$1" != -o; do shift; done
printf 'not a library' > "$2"
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvcc").write_text(NVCC)
    (folder / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


@without_gpu
@pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch is built without CUDA")
def test_a_library_is_installed_whole_or_not_at_all(tools, tmp_path, capsys):
    folder = tmp_path / "cache/reelweave/kernels"
    assert main(["build", "--arch", "90", "80"]) == 0
    said = capsys.readouterr().out
    assert str(folder / library.name([80, 90])) in said
    assert "no GPU here: nothing was run" in said
    assert library.find(folder, [90]) == folder / library.name([80, 90])
    (tools / "broken").touch()
    assert main(["build", "--arch", "90"]) == 1
    assert "it is broken" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == [library.name([80, 90])]


@without_gpu
@pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch is built without CUDA")
def test_another_folder_is_told_where_to_go(tools, tmp_path, capsys):
    assert main(["build", "--arch", "90", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / library.name([90])).exists()
    assert str(tmp_path / "cache/reelweave/kernels") in capsys.readouterr().out
    assert main(["build", "--arch", "100"]) == 2
    assert "nvcc 13.0 does not know sm_100" in capsys.readouterr().err


@without_gpu
def test_without_a_gpu_there_is_nothing_to_check_and_eager_computes(capsys, monkeypatch):
    assert main(["check"]) == main(["check", "--quick"]) == 1
    assert "no GPU to check on" in capsys.readouterr().err
    monkeypatch.delenv("REELWEAVE_KERNELS", raising=False)
    assert main(["which"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("eager (")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["library", "nvrtc", "eager"]
    monkeypatch.setenv("REELWEAVE_KERNELS", "library")
    chosen.cache_clear()  # a process chooses once
    assert main(["which"]) == 2
    assert "REELWEAVE_KERNELS=library cannot work here: no NVIDIA GPU" in capsys.readouterr().err
