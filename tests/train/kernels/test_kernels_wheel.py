"""A wheel, made without a compiler, carries the sources of the kernels beside the package that looks for them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")
ROOT = Path(__file__).parents[3]


def test_the_wheel_has_the_sources_of_the_kernels(tmp_path):
    tree, wheels = tmp_path / "tree", tmp_path / "wheels"
    wheels.mkdir()
    for part in ("train", "csrc"):
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, tree)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, env={"PATH": ""}, capture_output=True, check=True)
    (path,) = wheels.glob("*-none-any.whl")
    with zipfile.ZipFile(path) as wheel:
        inside = {
            name: wheel.read(name) for name in wheel.namelist() if name.startswith("train/kernels/cuda/csrc/")
        }
    sources = [path for path in (ROOT / "csrc").iterdir() if path.suffix in (".cu", ".cuh", ".h", ".cpp")]
    assert inside == {f"train/kernels/cuda/csrc/{path.name}": path.read_bytes() for path in sources}
