"""The lock and the bill of materials: everything that is installed, by version and hash, and no index by name."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.thorough import thorough

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"


def locked(lock: Path = LOCK) -> dict[str, dict[str, set[str]]]:
    """Hashes by name and version; a package may have one version for each version of Python."""
    found: dict[str, dict[str, set[str]]] = {}
    for entry in re.split(r"\n(?=\S)", lock.read_text().replace("\\\n", " ")):
        if match := re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)", entry):
            hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})(?!\w)", entry))
            assert hashes, f"{match[1]} has no hash"
            found.setdefault(canonicalize_name(match[1]), {})[match[2]] = hashes
    return found


def test_the_lock_holds_every_dependency_in_a_version_that_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    held = locked()
    for requirement in map(Requirement, wanted):
        if requirement.name != "reelweave":
            versions = held.get(canonicalize_name(requirement.name), {})
            assert any(requirement.specifier.contains(one) for one in versions), f"make lock: {requirement}"


def test_the_locks_name_no_index_and_no_file() -> None:
    locks = [LOCK, *(ROOT / "infra" / "locks").glob("*.txt")]
    assert len(locks) == 4
    for lock in locks:
        assert not re.search(r"://|--(extra-)?index|--find-links|^-e ", lock.read_text(), re.MULTILINE)


@thorough
def test_the_bill_of_materials_is_the_lock(tmp_path: Path) -> None:
    made = tmp_path / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", str(LOCK), "--output-reproducible"]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    bill = json.loads(made.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "reelweave"
    found: dict[str, set[str]] = {}
    for component in bill["components"]:
        assert component["purl"].startswith("pkg:pypi/")
        found.setdefault(canonicalize_name(component["name"]), set()).add(component["version"])
    assert found == {name: set(versions) for name, versions in locked().items()}
