"""A sample of the faults of `tests.bench.exactly_once`, which breaks a hundred runs."""

import subprocess
from pathlib import Path

from tests.bench.exactly_once import prove


def test_disturbed_runs_give_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    # The driver and Ray's workers are killed in test_run.
    faults = ["worker", "s3"]
    place = tmp_path / "small"
    place.mkdir()
    if (
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=False, capture_output=True).returncode
        == 0
    ):
        subprocess.run(["umount", place], check=True)
        faults.append("disk")
    result = prove(tmp_path, len(faults), faults, seed=1)
    assert result["wrong"] == []
    injected = result["faults_injected"]
    assert isinstance(injected, dict)
    assert all(injected[fault] for fault in ("worker", "s3"))
