"""docs/operations.md, walked in its order against a server that plays the account: each command of ours as printed.

`aws` stands for boto3 with the same template and arguments; a pod's command is that of the manifest, on one rank. What
makes a cluster (images, kubectl, sbatch) is left out: tests/infra checks those files.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import yaml

from reelweave.loader.dataset import open_dataset
from reelweave.pipelines.cli import main
from tests.media import write_video
from tests.printed import ROOT
from tests.s3server import s3_server
from tests.thorough import nightly

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..S3..BucketPolicy")
PAGE = ROOT / "docs" / "operations.md"
LEFT_OUT = (
    *("make pin", "aws eks", "docker", "kubectl", "sbatch", "aws cloudformation describe-stacks", "pip"),
    "infra/fill infra/kubeflow/exporter.yaml",
)
TRAIN = {
    "stream": {
        "workers": 1,
        "buckets": {
            "frames": [5, 9],
            "sizes": [[48, 80]],
            "compression": {"frames": 2, "height": 8, "width": 8, "causal": True},
            "max_text_tokens": 65,
            "memory_tokens": 500,
        },
    },
    "train": {
        "dtype": "float32",
        "model": {"hidden": 48, "heads": 4, "layers": 2, "patch": [1, 2, 2]},
        "tokenizer": {"frames": 2, "height": 4, "width": 4},
        "schedule": {"total_steps": 3, "warmup_steps": 1},
    },
}
"""The reader's own, which fits the videos of the test and a processor."""
SMALLER = {"32": "1", "4": "1", "128x224": "48x80", "17": "5"}
"""Ranks, microbatches and sizes of the page that few clips and a processor are enough for."""


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty account, and a folder with raw videos."""
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.chdir(tmp_path)
        for number in range(2):
            write_video(tmp_path / f"raw/{number}.mp4", (55,), size=(320, 192), first_scene=number)
        yield tmp_path


def commands() -> list[str]:
    """What the page prints to type, in its order, and what its manifests run."""
    text = PAGE.read_text().replace("\\\n", " ")
    found = [line.strip() for line in re.findall(r"^(?: {4}| {8})(\S.+)$", text, re.M)]
    (job,) = (
        one
        for one in yaml.safe_load_all((ROOT / "infra/kuberay/rayjob.yaml").read_text())
        if one["kind"] == "RayJob"
    )
    runtime = next(
        one
        for one in yaml.safe_load_all((ROOT / "infra/kubeflow/trainjob.yaml").read_text())
        if one["kind"] == "TrainingRuntime"
    )
    pod = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    stands_for = {
        "infra/fill infra/kuberay/rayjob.yaml | kubectl apply -f -": job["spec"]["entrypoint"],
        "infra/fill infra/kubeflow/trainjob.yaml | kubectl apply -f -": shlex.join(
            args[args.index("reelweave") :]
        ),
    }
    return [stands_for.get(line, line) for line in found]


def deployed(words: list[str]) -> str:
    """Make the stack as `aws cloudformation deploy` does, and return the bucket."""
    cloud = boto3.client("cloudformation")
    given = dict(word.split("=") for word in words[words.index("--parameter-overrides") + 1 :])
    cloud.create_stack(
        StackName=words[words.index("--stack-name") + 1],
        TemplateBody=(ROOT / words[words.index("--template-file") + 1]).read_text(),
        Capabilities=[words[words.index("--capabilities") + 1]],
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    )
    (stack,) = cloud.describe_stacks()["Stacks"]
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    assert {name for name in outputs if name.endswith("RoleArn")} == {
        f"{role}RoleArn" for role in ("Curator", "Remover", "Trainer", "Reader")
    }
    return outputs["BucketName"]


@nightly  # each command has tests of its own
def test_a_newcomer_comes_from_an_empty_account_to_a_trained_checkpoint(
    account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, done = "", []
    for command in commands():
        if command.startswith(LEFT_OUT):
            continue
        words = [word.replace("BUCKET", bucket) for word in shlex.split(command)]
        if command.startswith("aws cloudformation deploy"):
            bucket = deployed(words)
        elif command.startswith("aws s3 sync"):
            prefix = words[4].removeprefix(f"s3://{bucket}/")
            for path in (account / words[3]).iterdir():
                boto3.client("s3").upload_file(str(path), bucket, f"{prefix}/{path.name}")
        else:
            assert words.pop(0) == "reelweave", command
            done.append(words[0])
            words = adapted(words, account, bucket)
            status = main(words)
            told = capsys.readouterr()
            assert status == 0, (command, told.err)
            if words[:2] == ["config", "init"]:
                config = {"dataset": f"s3://{bucket}/datasets/clips-v1", "out": "runs/first"}
                (account / "train.yaml").write_text(yaml.safe_dump(TRAIN | config))
    assert len(open_dataset(f"s3://{bucket}/datasets/clips-v1")) == 2
    assert (account / "first.safetensors").is_file()
    assert list(account.glob("*.mp4"))
    assert done == [
        *("curate", "curate", "status", "verify", "report", "report", "config", "plan", "bench"),
        *("train", "verify", "metrics", "sample", "export"),
    ]


def adapted(words: list[str], account: Path, bucket: str) -> list[str]:
    """Return a command for one machine without GPUs and for small videos."""
    if words[0] == "curate":
        words = [word for word in words if not re.match(r"embed\.backend=|run\.wait_for_gpus=", word)]
        words = [word for at, word in enumerate(words) if word != "--set" or words[at + 1 : at + 2] != []]
        words = [word for word in words if word != "--set"] + ["--set", "run.runner=sequential"]
        words += ["--set", "spans.min_clip_s=1"]
    if words[0] == "train":
        words = [
            word.replace("/config/train.yaml", "train.yaml").replace("=/runs/", "=runs/") for word in words
        ]
    if words[0] == "metrics":
        words = [word.replace("/runs/", "runs/") for word in words] + ["--once"]
    if words[0] in ("plan", "bench", "sample"):
        words = [SMALLER.get(word, word) for word in words]
    if words[0] == "sample":
        words += ["--steps", "2"]
    return words
