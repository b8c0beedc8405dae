"""`reelweave config`: files to start from, values with their origins, keys explained, schemas; what runs keep."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reelweave.curate.config import CurateConfig
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.kept import kept_yaml
from reelweave.pipelines.configuration.kinds import EXAMPLES, KINDS
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from tests.commands import reelweave


@pytest.mark.parametrize("name", KINDS)
def test_a_file_to_start_from_is_the_configuration_of_the_package(name: str, tmp_path: Path) -> None:
    kind, file = KINDS[name], tmp_path / "my.yaml"
    done = reelweave("config", "init", name, "--out", file)
    assert (done.returncode, done.stderr) == (0, "")
    model = kind.model()
    assert resolve(model, file, []) == kind.read_given(None, []).validate(model)
    assert reelweave("config", "init", name).stdout == file.read_text()
    again = reelweave("config", "init", name, "--out", file)
    assert again.returncode == 2
    assert "is there already" in again.stderr
    shown = reelweave("config", "show", name, "--config", file)
    assert yaml.safe_load(shown.stdout) == yaml.safe_load(file.read_text())
    assert set(json.loads(reelweave("config", "schema", name).stdout)["properties"]) == set(
        model.model_fields
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_as_it_stands(name: str, tmp_path: Path) -> None:
    kind, file, _ = EXAMPLES[name]
    done = reelweave("config", "init", name, "--out", tmp_path / "example.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "example.yaml").read_bytes() == file.read_bytes()
    KINDS[kind].read_given(tmp_path / "example.yaml", []).validate(KINDS[kind].model())


def test_without_a_kind_all_are_listed_with_a_line_each(tmp_path: Path) -> None:
    rows = json.loads(reelweave("config", "init", "--json").stdout)
    assert [row["kind"] for row in rows] == [*KINDS, *EXAMPLES]
    assert all(row["for"].startswith("reelweave ") and row["content"] for row in rows)
    done = reelweave("config", "init")
    assert done.returncode == 0
    assert "wan22-i2v-lora  reelweave train" in done.stdout
    refused = reelweave("config", "init", "--out", tmp_path / "my.yaml")
    assert refused.returncode == 2
    assert "--out needs a KIND, one of curate, buckets" in refused.stderr


def test_a_text_that_begins_with_a_quotation_mark_is_quoted_once_more() -> None:
    done = reelweave("config", "show", "buckets", "--set", "where='cap' in caption")
    assert done.returncode == 2
    assert "quoted once more" in done.stderr
    done = reelweave("config", "show", "buckets", "--set", "where=\"'cap' in caption\"")
    assert done.returncode == 0, done.stderr
    assert "'cap' in caption" in done.stdout


def test_values_are_shown_with_their_origins(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("cut:\n  crf: 30\n  preset: fast\n")
    done = reelweave("config", "show", "curate", "--config", file, "--set", "cut.preset=slow")
    lines = done.stdout.splitlines()
    assert f"  crf: 30  # {file}, line 2" in lines
    assert '  preset: "slow"  # --set' in lines
    assert "  threads: 1  # default" in lines
    done = reelweave("config", "show", "curate", "--config", file, "--json")
    assert json.loads(done.stdout)["set_by"] == {
        "cut.crf": f"{file}, line 2",
        "cut.preset": f"{file}, line 3",
    }


def test_a_key_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("spans: {max_clip_s: 4}\n")
    done = reelweave("config", "explain", "max_clip_s", "--config", file)
    field = CurateConfig.model_fields["spans"].annotation.model_fields["max_clip_s"]
    for words in (
        "spans.max_clip_s",
        field.description,
        "unit: seconds",
        "default: 10.0",
        "--set spans.max_clip_s=",
    ):
        assert words in done.stdout
    assert f"here: 4, set by {file}, line 1" in done.stdout
    [found] = json.loads(reelweave("config", "explain", "cut.crf", "--json").stdout)
    assert (found["key"], found["kinds"], found["default"]) == ("cut.crf", ["curate"], 20)
    both = json.loads(reelweave("config", "explain", "memory_tokens", "--json").stdout)
    assert [one["kinds"] for one in both] == [["buckets"], ["train", "train-vae"]]
    said = reelweave("config", "explain", "buckets.memory_tokens").stdout
    assert "default: none, it must be given; `reelweave config init buckets` writes 144000" in said
    wrong = reelweave("config", "explain", "cut.crff")
    assert wrong.returncode == 2
    assert "did you mean cut.crf?" in wrong.stderr


def test_configurations_are_read_without_what_a_run_loads() -> None:
    code = (
        "import sys\n"
        "from reelweave.pipelines.configuration.kinds import KINDS\n"
        "for name, kind in KINDS.items():\n"
        "    kind.model()\n"
        "    assert not {'torch', 'ray', 'transformers', 'boto3'} & sys.modules.keys(), name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_kept_configuration_is_the_same_and_holds_no_credentials(tmp_path: Path) -> None:
    changes = ["dataset=https://me:PASS@host/ds", "train.optimizer.lr=1e-5", "train.model.layers=3"]
    config = KINDS["train"].read_given(None, changes).validate(TrainRunConfig)
    text = kept_yaml(config, ["train", "--config", "https://me:PASS@host/x"])
    assert "PASS" not in text
    (tmp_path / "kept.yaml").write_text(text)
    again = resolve(TrainRunConfig, tmp_path / "kept.yaml", [])
    assert again.model_copy(update={"dataset": config.dataset}) == config


def test_the_kept_command_repeats_the_run_whatever_its_inputs_are_called(tmp_path: Path) -> None:
    hostile = (
        "new\nline: {}\n.mp4",
        os.fsdecode(b"caf\xe9.mp4"),
        "it's \\ a.mp4",
        "\u202emp4.exe",
        "\U0001f4fc.mp4",
    )
    words = ["curate", *hostile, "--out", "ds"]
    file = tmp_path / "curate.yaml"
    file.write_bytes(kept_yaml(CurateConfig(), words).encode())
    assert resolve(CurateConfig, file, []) == CurateConfig()
    line = file.read_text().splitlines()[1].removeprefix("# reelweave ")
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True).stdout
    assert said.split(b"\0")[:-1] == [os.fsencode(word) for word in words]
