"""The training job of Kubeflow Trainer: its schema, its command, and how a pod of it is stopped."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from reelweave.pipelines.cli import parse_words
from tests.thorough import beyond, thorough

FILE = Path(__file__).parents[2] / "infra" / "kubeflow" / "trainjob.yaml"
DOCUMENTS = {one["kind"]: one for one in yaml.safe_load_all(FILE.read_text())}
RUNTIME = DOCUMENTS["TrainingRuntime"]
POD = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
NODE = POD["containers"][0]
# Like the trainer's ranks, none ends before all have saved: torchrun stops the others when one ends.
TRAINER = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
stopped = []
signal.signal(signal.SIGUSR1, lambda *_: stopped.append(1))
(folder / f"began.{rank}").touch()
while not stopped:
    time.sleep(0.05)
time.sleep(0.5)  # a checkpoint
(folder / f"saved.{rank}").touch()
while len(list(folder.glob("saved.*"))) < 2:
    time.sleep(0.05)
sys.exit(75)
"""


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("TrainJob", "TrainerV1alpha1TrainJob"),
        ("TrainingRuntime", "TrainerV1alpha1TrainingRuntime"),
        ("ServiceAccount", None),
        ("PersistentVolumeClaim", None),
    ],
)
def test_every_field_is_one_of_the_schema(kind: str, model: str | None) -> None:
    from kubeflow_trainer_api import models  # takes seconds of every process that collects this file

    document = DOCUMENTS[kind]
    assert document["metadata"]["name"]
    if model is not None:
        # The models drop what they do not know.
        assert getattr(models, model).from_dict(document).to_dict() == document


def test_the_exporter_reads_what_the_job_writes() -> None:
    from kubeflow_trainer_api import models

    deployment = yaml.safe_load(FILE.with_name("exporter.yaml").read_text())
    template = deployment["spec"]["template"]
    assert models.IoK8sApiCoreV1PodTemplateSpec.from_dict(template).to_dict() == template
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    pod = template["spec"]
    (exporter,) = pod["containers"]
    options = parse_words(exporter["args"])
    assert f"--set=out={options.places[1]}" in NODE["args"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(options.port)
    assert exporter["image"] == NODE["image"]
    assert pod["serviceAccountName"] == POD["serviceAccountName"]
    claims = [one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"]]
    assert claims == [DOCUMENTS["PersistentVolumeClaim"]["metadata"]["name"]]


def test_job_runtime_and_claims_name_each_other() -> None:
    reference = DOCUMENTS["TrainJob"]["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == ("TrainingRuntime", RUNTIME["metadata"]["name"])
    assert POD["serviceAccountName"] == DOCUMENTS["ServiceAccount"]["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert {mount["name"] for mount in NODE["volumeMounts"]} == volumes.keys()
    claim = volumes["runs"]["persistentVolumeClaim"]["claimName"]
    assert claim == DOCUMENTS["PersistentVolumeClaim"]["metadata"]["name"]
    job = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]
    labels = job["template"]["metadata"]["labels"]
    # What Kubeflow Trainer gives nodes, processes and addresses to.
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert job["name"] == NODE["name"] == "node"


def test_the_pod_has_bounds_and_no_root() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert NODE["securityContext"]["allowPrivilegeEscalation"] is False
    assert NODE["resources"]["requests"] == NODE["resources"]["limits"]
    gpus = int(NODE["resources"]["limits"]["nvidia.com/gpu"])
    assert DOCUMENTS["TrainJob"]["spec"]["trainer"]["numProcPerNode"] == gpus


def test_what_the_ranks_run_is_a_call_of_the_program() -> None:
    words = NODE["args"]
    options = parse_words(words[words.index("reelweave") + 1 :])
    assert options.config == "/config/train.yaml"
    assert options.set == ["out=/runs/first", "checkpoints=s3://BUCKET/runs/first"]
    assert {mount["mountPath"] for mount in NODE["volumeMounts"]} == {"/config", "/runs", "/dev/shm"}


@thorough
def test_a_pod_that_is_stopped_lets_its_ranks_save(tmp_path: Path) -> None:
    """The container's command and its hook, in a process namespace of their own, with torchrun itself."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no process namespace of one's own")
    (tmp_path / "reelweave").write_text(f"#!{sys.executable}\n{TRAINER}")
    (tmp_path / "reelweave").chmod(0o755)
    begin = NODE["args"].index("reelweave")
    command = [
        *NODE["command"],
        "--nproc-per-node=2",
        "--master-port=0",
        *NODE["args"][:begin],
        "reelweave",
        tmp_path,
    ]
    environment = os.environ | {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    pod = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *map(str, command)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list(tmp_path.glob("began.*"))) == 2, pod)
        first = int(Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()[0])
        hook = NODE["lifecycle"]["preStop"]["exec"]["command"]
        entered = ["nsenter", "--target", str(first), "--pid", "--mount", *hook]
        subprocess.run(entered, timeout=240, capture_output=True, check=False)
        # The hook returns when the container has ended: nothing is killed before.
        assert len(list(tmp_path.glob("saved.*"))) == 2
        assert pod.wait(60) != 0  # so that the job starts again
    finally:
        pod.send_signal(signal.SIGKILL)
        pod.wait()


def until(done: Any, pod: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 120
    while not done():
        assert pod.poll() is None, "the pod ended by itself"
        assert time.monotonic() < end
        time.sleep(0.05)


def test_disrupted_pods_do_not_count_against_the_restarts() -> None:
    jobs = RUNTIME["spec"]["template"]["spec"]
    (rule,) = jobs["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == (
        "RestartJobSetAndIgnoreMaxRestarts",
        ["PodFailurePolicy"],
    )
    job = jobs["replicatedJobs"][0]["template"]["spec"]
    (of_pods,) = job["podFailurePolicy"]["rules"]
    assert (of_pods["action"], of_pods["onPodConditions"][0]["type"]) == ("FailJob", "DisruptionTarget")
    assert POD["restartPolicy"] == "Never"  # which such a policy requires


@pytest.mark.parametrize(("devices", "said"), beyond(1, [(7, "7 GPUs of 8"), (8, "")]))
def test_a_pod_looks_at_its_gpus_first(devices: int, said: str) -> None:
    (check,) = POD["initContainers"]
    assert check["resources"] == NODE["resources"]
    assert check["command"][:2] == ["python", "-c"]
    program = check["command"][2].replace('f"cuda:{number}"', '"cpu"')
    begin = f"import torch\ntorch.cuda.device_count = lambda: {devices}\n"
    ended = subprocess.run(
        [sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (ended.returncode == 0) == (not said), ended.stderr
    assert said in ended.stderr


def test_the_tools_that_the_container_needs_are_in_its_image() -> None:
    # bash, kill (of bash) and tail are in Debian's slim images; pkill and ps are not.
    words = " ".join([*NODE["command"], *NODE["lifecycle"]["preStop"]["exec"]["command"]])
    assert not {"pkill", "ps", "pgrep"} & set(words.split())
    assert shutil.which("bash")
