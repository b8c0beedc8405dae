"""The aesthetic head: both published layouts, and files that are none."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from reelweave.curate.models.aesthetic import AestheticConfig, AestheticHead
from reelweave.loader.errors import UsageError
from tests.tiny_models import Program


class PublishedHead(torch.nn.Module):
    """As improved-aesthetic-predictor defines it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, 1024),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(1024, 128),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(128, 64),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(64, 16),
            torch.nn.Linear(16, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture
def frames() -> np.ndarray:
    vectors = np.random.default_rng(5).normal(size=(6, 24)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def published(tmp_path: Path) -> tuple[PublishedHead, Path]:
    torch.manual_seed(1)
    head = PublishedHead(24).eval()
    torch.save(head.state_dict(), tmp_path / "sac+logos+ava1.pth")
    return head, tmp_path / "sac+logos+ava1.pth"


def score(path: Path, frames: np.ndarray, **changes: object) -> float:
    return AestheticHead(AestheticConfig(weights=str(path), **changes)).score(frames)


def test_the_five_layers_score_as_published(
    published: tuple[PublishedHead, Path], frames: np.ndarray
) -> None:
    head, path = published
    with torch.no_grad():
        expected = head(torch.from_numpy(frames)).numpy()
    assert score(path, frames) == pytest.approx(float(expected.mean()), abs=1e-5)
    assert score(path, frames, reduce="min") == pytest.approx(float(expected.min()), abs=1e-5)


def test_the_linear_head_scores_as_published(tmp_path: Path, frames: np.ndarray) -> None:
    torch.manual_seed(2)
    head = torch.nn.Linear(24, 1)
    save_file(head.state_dict(), tmp_path / "linear.safetensors")
    with torch.no_grad():
        expected = head(torch.from_numpy(frames)).mean().item()
    assert score(tmp_path / "linear.safetensors", frames) == pytest.approx(expected, abs=1e-6)


def test_embeddings_of_another_model_are_refused(
    published: tuple[PublishedHead, Path], frames: np.ndarray
) -> None:
    with pytest.raises(UsageError, match="scores embeddings of 24 numbers, and the CLIP model gives 12"):
        score(published[1], frames[:, :12])


def test_a_head_with_an_unknown_tensor_is_refused(
    published: tuple[PublishedHead, Path], frames: np.ndarray, tmp_path: Path
) -> None:
    tensors = {**published[0].state_dict(), "norm.weight": torch.ones(4)}
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="known layout"):
        score(tmp_path / "other.safetensors", frames)


def test_layers_that_do_not_fit_are_refused(tmp_path: Path, frames: np.ndarray) -> None:
    tensors = {
        "layers.0.weight": torch.ones(8, 24),
        "layers.0.bias": torch.ones(8),
        "layers.2.weight": torch.ones(1, 9),
        "layers.2.bias": torch.ones(1),
    }
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match=r"layers\.2\.weight"):
        score(tmp_path / "other.safetensors", frames)


def test_a_file_that_would_run_a_program_is_refused(tmp_path: Path, frames: np.ndarray) -> None:
    torch.save(Program(tmp_path / "ran"), tmp_path / "head.pth")
    with pytest.raises(UsageError, match="cannot be read"):
        score(tmp_path / "head.pth", frames)
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path, frames: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"gone\.pth is no file"):
        score(tmp_path / "gone.pth", frames)
