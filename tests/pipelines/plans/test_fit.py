"""`reelweave fit`: from measured microbatches to keys of a configuration."""

import json
from pathlib import Path

import pytest
import yaml

from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.pipelines.cli import main


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval of 200 resamples takes seconds."""
    monkeypatch.setattr("reelweave.loader.buckets.cost_fit._RESAMPLES", 20)


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    path = tmp_path / "bench.csv"
    lines = ["batch,length,step_s,peak_gib"]
    for batch in (1, 2, 4):
        for length in (2000, 4000, 8000, 16000, 32000):
            tokens = batch * length
            lines.append(
                f"{batch},{length},{0.05 + 1e-5 * tokens + 3e-10 * tokens * length},{30 + 5e-4 * tokens}"
            )
    path.write_text("\n".join(lines))
    return path


def test_what_it_prints_is_a_bucket_configuration(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(bench), "--target-step-s", "2.5", "--memory-gib", "70"]) == 0
    said = capsys.readouterr().out
    keys = yaml.safe_load(said[said.index("stream.buckets:") :].partition("\n")[2])
    config = BucketConfig.model_validate(
        {"frames": [1], "sizes": [[64, 64]], "compression": "wan", "max_text_tokens": 0, **keys}
    )
    assert config.memory_tokens == pytest.approx(80_000, rel=1e-3)
    assert config.cost.square_s == pytest.approx(3e-10, rel=1e-3)
    assert config.target_step_s == 2.5


def test_as_json_both_models_are_judged(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", str(bench), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"]["linear_quadratic"]["worst_error"] < 0.01 < said["fits"]["power"]["worst_error"]
    assert set(said["buckets"]) == {"cost"}


def test_what_cannot_be_trusted_is_not_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few.csv"
    path.write_text("batch,length,step_s\n1,2000,0.1\n1,4000,0.3\n")
    assert main(["fit", str(path)]) == 0
    said = capsys.readouterr().out
    assert "no fit can be trusted" in said
    assert "stream.buckets" not in said


@pytest.mark.parametrize(
    "options", [["gone.csv"], ["{csv}", "--memory-gib", "-1"], ["{csv}", "--memory-gib", "20"]]
)
def test_a_wrong_call_is_told(bench: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *(option.format(csv=bench) for option in options)]) == 2
    assert capsys.readouterr().err.startswith("reelweave: ")
