"""Clusters of Ray: by the schemas of KubeRay and of Ray's launcher, and by what Ray itself makes of their settings."""

import copy
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.crds import complaints

INFRA = Path(__file__).parents[2] / "infra"
GI = 2**30
KINDS = ("ServiceAccount", "PersistentVolumeClaim")
"""Kubernetes' own, which no operator defines."""


def documents(path: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((INFRA / path).read_text())}


JOB = documents("kuberay/rayjob.yaml")["RayJob"]
CLUSTER = documents("kuberay/raycluster.yaml")["RayCluster"]


def kustomized(folder: str) -> dict[str, Any]:
    """Return the job as kustomize makes it in a folder."""
    import jsonpatch

    kustomization = yaml.safe_load((INFRA / f"kuberay/{folder}/kustomization.yaml").read_text())
    (patch,) = kustomization["patches"]
    assert patch["target"] == {"group": "ray.io", "kind": JOB["kind"], "name": JOB["metadata"]["name"]}
    found: dict[str, Any] = jsonpatch.apply_patch(JOB, yaml.safe_load(patch["patch"]))
    return found


@pytest.mark.parametrize("path", ["kuberay/rayjob.yaml", "kuberay/raycluster.yaml", "kubeflow/trainjob.yaml"])
def test_operators_know_every_field(path: str) -> None:
    found = documents(path)
    assert [line for kind, one in found.items() if kind not in KINDS for line in complaints(one)] == []


def test_a_misspelled_field_and_a_wrong_type_are_found() -> None:
    wrong = copy.deepcopy(JOB)
    group = wrong["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    group["maxReplica"] = group.pop("maxReplicas")
    group["rayStartParams"]["num-cpus"] = 16
    group["template"]["spec"]["containers"][0]["volumeMounts"][0]["path"] = "/"
    found = "\n".join(complaints(wrong))
    for word in (
        "'maxReplica' was",
        "'maxReplicas' is a required",
        "16 is not of type",
        "'path' was unexpected",
    ):
        assert word in found


def test_the_template_of_the_training_runtime_is_a_job_set() -> None:
    runtime = documents("kubeflow/trainjob.yaml")["TrainingRuntime"]
    jobs = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "reelweave"},
        "spec": runtime["spec"]["template"]["spec"],
    }
    assert list(complaints(jobs)) == []


def spec_of(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = JOB["spec"]["rayClusterSpec"] if kind == "RayJob" else CLUSTER["spec"]
    return found


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_ray_counts_what_a_pod_has(kind: str) -> None:
    from ray.scripts.scripts import start

    spec = spec_of(kind)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        head = "groupName" not in group
        given = group["rayStartParams"]
        words = [f"--{name}={value}" for name, value in given.items()]
        ray = start.make_context("start", ["--head" if head else "--address=head:6379", *words]).params
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        limits = container["resources"]["limits"]
        assert ray["num_cpus"] == (0 if head else int(limits["cpu"]))
        assert (ray["num_gpus"] or 0) == int(limits.get("nvidia.com/gpu", 0))
        memory = int(limits["memory"].removesuffix("Gi")) * GI
        promised = (ray["memory"] or 0) + ray["object_store_memory"]
        assert promised <= 0.9 * memory, "Ray's own processes and the page cache need some"
        assert head or promised >= 0.7 * memory
        volumes = {one["name"]: one for one in pod["volumes"]}
        mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
        spill = mounts[ray["object_spilling_directory"]]["emptyDir"]["sizeLimit"]
        assert int(spill.removesuffix("Gi")) < int(limits["ephemeral-storage"].removesuffix("Gi"))


def test_every_worker_has_memory_for_the_cutters_that_its_processors_run() -> None:
    from reelweave.curate import CurateConfig

    for group in spec_of("RayJob")["workerGroupSpecs"]:
        given = group["rayStartParams"]
        needed = int(given["num-cpus"]) * CurateConfig().run.worker_memory_mb * 1e6
        assert needed <= int(given["memory"])


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_workers_are_spot_nodes_and_the_head_is_not(kind: str) -> None:
    spec = spec_of(kind)
    assert spec["authOptions"] == {"mode": "token"}
    head = spec["headGroupSpec"]["template"]["spec"]
    assert "spot" not in str(head.get("tolerations"))
    assert "spot" not in head["nodeSelector"].values()
    for group in spec["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        assert "spot" in pod["nodeSelector"].values()
        assert {one["key"] for one in pod["tolerations"]} >= {"spot"}
        gpus = "nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]
        assert gpus == ("nvidia.com/gpu" in {one["key"] for one in pod["tolerations"]})
        claims = [
            one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if one["name"] == "models"
        ]
        for path in ("kuberay/rayjob.yaml", "kuberay/raycluster.yaml"):
            assert claims == [documents(path)["PersistentVolumeClaim"]["metadata"]["name"]]


def test_the_cluster_that_stays_is_that_of_the_job_but_begins_empty() -> None:
    job, cluster = copy.deepcopy(spec_of("RayJob")), copy.deepcopy(spec_of("RayCluster"))
    for group in cluster["workerGroupSpecs"]:
        assert (group.pop("minReplicas"), group.pop("replicas")) == (0, 0)
    for group in job["workerGroupSpecs"]:
        del group["minReplicas"], group["replicas"]
    assert job == cluster


def test_kueue_admits_the_job_in_its_queue() -> None:
    """By the rules of its webhook for jobs of Ray."""
    job = kustomized("kueue")
    assert list(complaints(job)) == []
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "QUEUE"}
    spec = job["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert "clusterSelector" not in spec
    assert spec["rayClusterSpec"]["enableInTreeAutoscaling"] is False
    groups = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert len(groups) <= 7
    assert "head" not in {group["groupName"] for group in groups}
    assert all(group["replicas"] == group["minReplicas"] == group["maxReplicas"] for group in groups)


def test_kuberay_takes_the_job_that_leaves_its_logs() -> None:
    """By the rules of its validation for collectors."""
    job = kustomized("history")
    assert list(complaints(job)) == []
    collector = job["spec"]["rayClusterSpec"].pop("historyServerOptions")["collectorOptions"]
    assert collector["image"]
    assert {one["name"]: one["value"] for one in collector["env"]} == {
        "STORAGE_BACKEND": "s3",
        "S3_BUCKET": "HISTORY_BUCKET",
        "S3_REGION": "REGION",
    }
    assert job == JOB


def launched() -> dict[str, Any]:
    """Return the configuration of `ray up`, completed as Ray completes it."""
    from ray.autoscaler._private.util import prepare_config

    found: dict[str, Any] = prepare_config(yaml.safe_load((INFRA / "ray/cluster.yaml").read_text()))
    return found


def test_rays_launcher_takes_the_cluster_and_installs_nothing() -> None:
    from ray.autoscaler._private.util import validate_config

    cluster = launched()
    validate_config({**cluster, "cluster_synced_files": []})
    assert [cluster[name] for name in cluster if name.endswith("setup_commands")] == [[], [], []]
    wrong = {**cluster, "cluster_synced_files": [], "idle_timeout": 3}
    with pytest.raises(Exception, match="idle_timeout"):
        validate_config(wrong)


def test_launched_nodes_are_spot_but_for_the_head_and_hold_the_curators_role() -> None:
    cluster = launched()
    types = cluster["available_node_types"]
    assert cluster["max_workers"] >= sum(one["max_workers"] for one in types.values())
    for name, one in types.items():
        node = one["node_config"]
        head = name == cluster["head_node_type"]
        assert (node.get("InstanceMarketOptions") is None) == head
        assert node["IamInstanceProfile"] == {"Arn": "HEAD_PROFILE" if head else "CURATOR_PROFILE"}
        assert node["MetadataOptions"]["HttpTokens"] == "required"
    assert types["head"]["resources"] == {"CPU": 0}


def test_launched_nodes_start_ray_with_options_that_it_has() -> None:
    from ray.scripts.scripts import start

    cluster = launched()
    for when in ("head_start_ray_commands", "worker_start_ray_commands"):
        words = cluster[when][-1].replace("$RAY_HEAD_IP", "head").split()
        assert words[:2] == ["RAY_AUTH_MODE=token", "RAY_USAGE_STATS_ENABLED=0"]
        assert words[2:4] == ["ray", "start"]
        ray = start.make_context("start", words[4:]).params
        assert ray["head"] == (when == "head_start_ray_commands")
    # Ray begins a node by `docker run IMAGE bash`.
    assert "--entrypoint=" in cluster["docker"]["run_options"]


def filled(*files: str, values: Path | None = None) -> "subprocess.CompletedProcess[str]":
    given = ["--values", str(values)] if values else []
    command = [str(INFRA / "fill"), *given, *(str(INFRA / file) for file in files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


OTHERS = ("aws", "gpu", "observability")
FILES = sorted(str(path.relative_to(INFRA)) for path in INFRA.rglob("*.yaml") if path.parts[-2] not in OTHERS)


@pytest.mark.parametrize("file", FILES)
def test_everything_that_is_the_readers_is_named_in_one_file(file: str, tmp_path: Path) -> None:
    words = re.findall(r"^([A-Z_]+)=$", (INFRA / "values").read_text(), re.M)
    own = tmp_path / "values"
    own.write_text("".join(f"{word}=my-{number}.example/x\n" for number, word in enumerate(words)))
    done = filled(file, values=own)
    assert done.returncode == 0, done.stderr
    for document in yaml.safe_load_all(done.stdout):
        assert not set(words) & set(re.findall(r"\w+", yaml.safe_dump(document)))
        unlisted = {
            word for leaf in leaves(document) for word in re.findall(r"(?:^|/)([A-Z_]{4,})(?=/|$)", leaf)
        }
        assert unlisted <= {"WARN"}, "a word in capitals that infra/values does not list"


def leaves(value: Any) -> Iterator[str]:
    """Yield the texts of a document, but for the names of variables."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one) if key != "name" else ()
    elif isinstance(value, list):
        for one in value:
            yield from leaves(one)
    elif isinstance(value, str):
        yield value


def test_a_word_without_a_value_is_named(tmp_path: Path) -> None:
    done = filled("kuberay/rayjob.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "REGISTRY in" in done.stderr
    assert "write your own" in done.stderr
    (tmp_path / "values").write_text("REGISTRY=a b\n")
    assert "'a b'" in filled("kuberay/rayjob.yaml", values=tmp_path / "values").stderr
    assert filled().returncode == 2
