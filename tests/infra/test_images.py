"""The images: what their locks hold, and that curation without models needs no more than the smallest of them."""

import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reelweave.pipelines.cli import main
from reelweave.pipelines.terminal import extras
from tests.media import write_video
from tests.test_supply import locked
from tests.thorough import thorough

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "infra" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TORCH = re.compile(r"torch.*|triton|nvidia-.*|cuda-.*")
Lock = dict[str, dict[str, set[str]]]


def recipes() -> dict[str, list[str]]:
    """Words of the commands of `make image-locks`, by the lock that they write."""
    rule = (ROOT / "Makefile").read_text().split("\nimage-locks:")[1].split("\n\n")[0].replace("\\\n", " ")
    words = [shlex.split(line) for line in rule.splitlines()[1:]]
    return {Path(line[-1]).name: line for line in words}


def extras_of(words: list[str]) -> set[str]:
    """Return the extras that a command names, and those that they name."""
    found, queue = set[str](), [words[at + 1] for at, word in enumerate(words) if word == "--extra"]
    while queue:
        found.add(extra := queue.pop())
        inner = [Requirement(one) for one in PROJECT["optional-dependencies"][extra]]
        queue += [more for one in inner if one.name == "reelweave" for more in one.extras]
    return found


@pytest.mark.parametrize("name", ["curate-cpu.txt", "curate.txt", "train.txt"])
def test_a_lock_holds_what_its_image_needs_as_the_main_lock_has_it(name: str) -> None:
    lock, whole, words = locked(LOCKS / name), locked(), recipes()[name]
    for package in lock.keys() & whole.keys():
        assert lock[package].items() <= whole[package].items(), package
    # Beyond the main lock there is the dashboard of Ray alone, which environments of developers do without.
    assert bool(lock.keys() - whole.keys()) == (name != "train.txt")
    left_out = {"torch", "tensorboard"} if name == "curate-cpu.txt" else set()
    wanted = PROJECT["dependencies"] + [
        one for extra in extras_of(words) for one in PROJECT["optional-dependencies"][extra]
    ]
    given = (LOCKS / Path(words[1]).name).read_text().splitlines()
    wanted += [line for line in given if line and not line.startswith("#")]
    for requirement in map(Requirement, wanted):
        package = canonicalize_name(requirement.name)
        if package not in left_out | {"reelweave"}:
            assert any(map(requirement.specifier.contains, lock.get(package, ()))), (
                f"make image-locks: {requirement}"
            )


def test_the_smallest_image_is_part_of_its_larger_sister_and_has_no_pytorch() -> None:
    small, large = locked(LOCKS / "curate-cpu.txt"), locked(LOCKS / "curate.txt")
    assert small.items() <= large.items()
    assert [package for package in small if TORCH.fullmatch(package)] == []
    assert {"torch", "triton", "nvidia-nccl-cu13"} <= {
        package for package in large if TORCH.fullmatch(package)
    }


def test_packages_are_installed_by_hash_and_ours_without_a_network() -> None:
    text = (ROOT / "infra" / "Dockerfile").read_text().replace("\\\n", " ")
    installs = [line for line in text.splitlines() if "pip install" in line]
    by_lock = [line for line in installs if "--requirement" in line]
    assert [Path(line.split()[-1]).name for line in by_lock] == ["curate-cpu.txt", "curate.txt", "train.txt"]
    assert all("--require-hashes" in line and "--only-binary :all:" in line for line in by_lock)
    ours = [line for line in installs if line not in by_lock]
    assert len(ours) == 3
    assert all(re.search(r"--no-deps --no-index --no-build-isolation \.$", line) for line in ours)
    assert re.findall(r"--no-binary (\S+)", text) == ["docopt"]


WITHOUT = """
import importlib.metadata, json, sys
allowed = set(json.loads(sys.argv[1]))
modules = importlib.metadata.packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        owners = modules.get(name.split(".")[0], ())
        if owners and not any(owner.lower().replace("_", "-").replace(".", "-") in allowed for owner in owners):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from reelweave.pipelines.cli import main
for words in json.loads(sys.argv[2]):
    if status := main(words):
        sys.exit(f"{words}: {status}")
"""
"""A Python that has the packages of a lock and no others."""


@thorough
def test_the_smallest_image_curates_verifies_and_reports(tmp_path: Path) -> None:
    write_video(tmp_path / "raw" / "boat.mp4", (55,))
    commands = [
        ["curate", "raw", "--out", "clips", "--set", "run.runner=sequential", "--set", "run.isolate=false"],
        *(["verify", "clips"], ["report", "clips"], ["status", "clips"], ["metrics", "clips", "--once"]),
        ["remove", "clips", "--source", "raw/boat.mp4"],
    ]
    allowed = [*locked(LOCKS / "curate-cpu.txt"), "reelweave"]

    def run(commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT, json.dumps(allowed), json.dumps(commands)]
        env = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    done = run(commands)
    assert done.returncode == 0, done.stderr
    # What needs more says so.
    done = run([["plan", "clips", "--world-size", "1"]])
    assert "torch is not installed here; pip install 'reelweave[curate]' brings it" in done.stderr
    assert "Traceback" not in done.stderr


def test_advice_names_extras_that_bring_the_module() -> None:
    modules = importlib.metadata.packages_distributions()
    for module, extra in extras._EXTRAS.items():
        brought = [
            Requirement(one).name for one in PROJECT["optional-dependencies"][extra] + PROJECT["dependencies"]
        ]
        brought += [
            Requirement(one).name for name in brought for one in importlib.metadata.requires(name) or ()
        ]
        owners = {canonicalize_name(owner) for owner in modules.get(module, [module])}
        assert owners & {canonicalize_name(one) for one in brought} or module == "sklearn", module


def test_a_module_that_no_extra_brings_is_a_bug_of_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reelweave.pipelines.commands.look import verify

    def broken(_: object) -> int:
        raise ModuleNotFoundError("No module named 'own'", name="own.part")

    monkeypatch.setattr(verify, "run", broken)
    with pytest.raises(ModuleNotFoundError, match="own"):
        main(["verify", str(tmp_path)])
