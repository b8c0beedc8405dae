"""The lock and the bill of materials: everything that is installed, by version and hash, and no index by name."""

import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
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


@contextmanager
def advisories(known: dict[str, str]) -> Iterator[tuple[str, set[str]]]:
    """A server with OSV's protocol; yields its address and the packages that it was asked for."""
    asked: set[str] = set()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            about = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = about["package"]["name"]
            asked.add(f"{name}=={about['version']}")
            found = {"id": known.get(name), "summary": "It is broken.", "affected": []}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"vulns": [found]} if name in known else {}).encode())

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
        finally:
            server.shutdown()


@pytest.mark.parametrize("known", [{}, {"rich": "PYSEC-0000-1"}], ids=["nothing", "one"])
def test_the_audit_asks_for_what_a_lock_holds_and_fails_at_a_known_vulnerability(
    known: dict[str, str], tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    entries = re.findall(r"^(?:rich|pyyaml)==.*(?:\n    .*)*\n", LOCK.read_text(), re.M)
    lock.write_text("".join(entries))
    with advisories(known) as (url, asked):
        words = [f"AUDIT=--vulnerability-service osv --osv-url {url} --cache-dir {tmp_path}/cache"]
        words += [f"LOCKS={lock}", f"BIN={Path(sys.executable).parent}", "--old-file", ".venv/.installed"]
        command = ["make", "-C", str(ROOT), "audit", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert asked == {f"{name}=={max(locked()[name])}" for name in ("rich", "pyyaml")}
    assert (done.returncode != 0) == bool(known), done.stderr
    assert all(one in done.stdout for one in known.values())


def test_every_lock_is_audited_on_a_schedule() -> None:
    command = ["make", "-C", str(ROOT), "--dry-run", "--old-file", ".venv/.installed", "audit"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    locks = {
        "requirements.lock",
        *(f"infra/locks/{one.name}" for one in (ROOT / "infra/locks").glob("*.txt")),
    }
    assert set(re.findall(r"--requirement (\S+)", said)) == locks
    scheduled = (ROOT / ".ci" / "scheduled").read_text()
    assert re.findall(r"^make (\w+)", scheduled, re.M) == ["audit", "lowest", "strict", "nightly"]
