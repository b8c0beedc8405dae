"""Container, Ray job and page: do they name what exists?"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from reelweave.curate import CurateConfig
from reelweave.pipelines.cli import COMMANDS, parse_words
from reelweave.pipelines.configuration.config import resolve

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
FILES = sorted(path for path in INFRA.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def dockerfile() -> list[list[str]]:
    """Its instructions, each as words."""
    text = re.sub(r"^#.*\n", "", (INFRA / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((INFRA / "kuberay" / "rayjob.yaml").read_text())
    return {document["kind"]: document for document in documents}


def copied(dockerfile: list[list[str]]) -> list[str]:
    return [source for words in dockerfile if words[0] == "COPY" for source in words[1:-1]]


def test_everything_the_image_copies_is_in_the_repository(dockerfile: list[list[str]]) -> None:
    assert copied(dockerfile)
    assert [source for source in copied(dockerfile) if not (ROOT / source).exists()] == []


def test_the_image_runs_the_program_as_a_user_who_is_not_root(dockerfile: list[list[str]]) -> None:
    for words in stages(dockerfile).values():
        user = [each[1] for each in words if each[0] == "USER"]
        entry = [each[1:] for each in words if each[0] == "ENTRYPOINT"]
        assert bool(user) == bool(entry)
        assert [int(each) > 0 for each in user] == [True] * len(entry)
        assert entry in ([], [['["reelweave"]']])
    assert {name for name, words in stages(dockerfile).items() if words[-1][0] == "CMD"} == {
        "curate",
        "curate-cpu",
        "train",
    }


def stages(dockerfile: list[list[str]]) -> dict[str, list[list[str]]]:
    """Instructions by the name of the stage."""
    found: dict[str, list[list[str]]] = {}
    for words in dockerfile:
        if words[0] == "FROM":
            image = re.fullmatch(r"python:3\.11-slim(@sha256:[0-9a-f]{64})?", words[1])
            assert words[1] in found or image, words
            found[words[3]] = own = []
        own.append(words)
    return found


def test_dependencies_are_installed_before_any_source_is_copied(dockerfile: list[list[str]]) -> None:
    before = []
    for words in dockerfile:
        if words[0] == "FROM" and words[3] == "sources":
            break
        before += words[1:-1] if words[0] == "COPY" else []
    assert before == [f"infra/locks/{name}.txt" for name in ("curate-cpu", "curate", "train")]


def test_the_image_fetches_nothing_by_hand_and_holds_no_secret(dockerfile: list[list[str]]) -> None:
    text = (INFRA / "Dockerfile").read_text()
    assert not [words for words in dockerfile if words[0] in ("ADD", "ARG")]
    assert not re.search(r"https?://|curl |index-url|PIP_|(?i:secret|token|password|aws_)", text)
    assert not [words for words in dockerfile if words[0] == "RUN" and words[1] == "wget"]


def test_the_ray_job_has_the_fields_kuberay_requires(manifests: dict[str, dict[str, Any]]) -> None:
    job = manifests["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    assert job["metadata"]["name"]
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:2] == ["reelweave", "curate"]
    config = resolve(CurateConfig, None, parse_words(words[1:]).set)
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    # It begins when the GPUs are there with which every group starts.
    assert config.run.wait_for_gpus == sum(map(gpus, groups)) > 0
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"].keys() >= {"rayStartParams", "template"}
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() >= {"groupName", "rayStartParams", "template"}
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    assert all(isinstance(value, str) for value in cluster["headGroupSpec"]["rayStartParams"].values())


def gpus(group: dict[str, Any]) -> int:
    """GPUs of the pods that a group has at least."""
    (pod,) = group["template"]["spec"]["containers"]
    return group["minReplicas"] * int(pod["resources"]["limits"].get("nvidia.com/gpu", 0))


def test_the_cluster_grows_with_the_work_and_goes_with_the_job(manifests: dict[str, dict[str, Any]]) -> None:
    spec = manifests["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert cluster["enableInTreeAutoscaling"] is True
    assert any(group["minReplicas"] < group["maxReplicas"] for group in cluster["workerGroupSpecs"])
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_every_pod_has_bounds_a_service_account_and_no_root(manifests: dict[str, dict[str, Any]]) -> None:
    cluster = manifests["RayJob"]["spec"]["rayClusterSpec"]
    account = manifests["ServiceAccount"]["metadata"]["name"]
    images = set()
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["serviceAccountName"] == account
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            images.add(container["image"])
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["resources"]["limits"].keys() >= {"cpu", "memory", "ephemeral-storage"}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert len(images) == 1


def test_the_ray_version_is_one_the_package_allows(manifests: dict[str, dict[str, Any]]) -> None:
    stated = manifests["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"]
    low, high = re.search(
        r'"ray\[data\]>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text()
    ).groups()

    def number(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    assert number(low) <= number(stated) < number(high)


def test_every_command_line_names_an_existing_command() -> None:
    text = "\n".join(path.read_text().replace("\\\n", " ") for path in FILES)
    called = set(re.findall(r"\breelweave(?::[\w.]+)? +([a-z]+)", text))
    assert called >= {"curate", "train"}
    assert called <= set(COMMANDS)


def test_the_page_calls_only_files_that_exist() -> None:
    words = shlex.split((INFRA / "README.md").read_text().replace("`", " ").replace("'", " "))
    named = {word.rstrip(",.:") for word in words if word.startswith("infra/")}
    assert named >= {
        "infra/Dockerfile",
        "infra/kuberay/rayjob.yaml",
        "infra/slurm/curate.sbatch",
        "infra/slurm/train.sbatch",
    }
    files = [ROOT / name for name in named]
    # kubectl kustomize takes a folder.
    files = [path / "kustomization.yaml" if path.is_dir() else path for path in files]
    assert [path for path in files if not path.is_file()] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(INFRA)))
def test_no_file_names_a_registry_or_holds_a_credential(path: Path) -> None:
    assert not re.search(
        r"https?://|\w+\.(io|com|org)/\w+:\S|AKIA[0-9A-Z]{16}|(?i:aws_secret)", path.read_text()
    )
