"""Commands that train or sample a published model otherwise than it was trained: said in one line each, or refused."""

from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.sampling.trained.load import load_published
from reelweave.train.sampling.trained.published import compare_with_published
from tests.train.clips import ClipStream
from tests.train.published import publish, publish_text, run_config
from tests.train.saved import metrics

COGVIDEOX = {
    "name": "ddpm",
    "prediction": "v",
    "schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "zero_terminal_snr": True,
    "snr_shift": 3.0,
}


def configured(folder: Path, variant: str, objective: dict, steps: int = 1, **update) -> TrainConfig:
    config = run_config(folder, variant, steps)
    return TrainConfig.model_validate(config.model_dump() | {"objective": objective} | update)


def schedule(folder: Path, name: str, **settings) -> None:
    """Write the scheduler of a pipeline as diffusers does."""
    import diffusers

    getattr(diffusers, name)(**settings).save_pretrained(folder / "scheduler")


@pytest.fixture
def cogvideox(tmp_path: Path) -> Path:
    schedule(
        tmp_path,
        "CogVideoXDDIMScheduler",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
    )
    return tmp_path


def test_another_prediction_is_refused_with_every_value_to_set(cogvideox: Path) -> None:
    config = configured(cogvideox, "cogvideox", {"name": "ddpm"})
    with pytest.raises(UsageError) as refused:
        Trainer(config, ClipStream(), cogvideox / "run").run()
    line = str(refused.value)
    assert "prediction is epsilon, there v" in line
    assert (
        "objective: {name: ddpm, prediction: v, schedule: scaled_linear, beta_start: 0.00085, beta_end: 0.012,"
        " zero_terminal_snr: true, snr_shift: 3.0}" in line
    )
    with pytest.raises(UsageError, match="prediction is epsilon, there v"):
        load_published(config, torch.device("cpu"))
    # What an earlier version has trained goes on.
    assert compare_with_published(config.modules, Bundle(config).dit, new=False) == [line]


def test_other_betas_are_said_and_the_published_objective_is_silent(cogvideox: Path, capsys, caplog) -> None:
    config = configured(cogvideox, "cogvideox", {"name": "ddpm", "prediction": "v", "snr_shift": 3.0})
    Trainer(config, ClipStream(), cogvideox / "run").run()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("objective differs")]
    assert len(lines) == 1
    # It can be copied: zero SNR alone would be refused.
    assert "objective: {name: ddpm, prediction: v, schedule: scaled_linear," in lines[0]
    assert "snr_shift is" not in lines[0]
    assert len(metrics(cogvideox / "run")) == 1
    load_published(config, torch.device("cpu"))
    assert caplog.text.count("objective differs") == 1
    published = configured(cogvideox, "cogvideox", COGVIDEOX)
    assert compare_with_published(published.modules, Bundle(published).dit, new=True) == []


@pytest.mark.parametrize(
    ("variant", "scheduler", "settings", "objective", "key"),
    [
        ("wan", "UniPCMultistepScheduler", {"flow_shift": 3.0}, {"name": "flow"}, "shift.factor is 1.0, there 3.0"),
        ("wan", "FlowMatchEulerDiscreteScheduler", {"shift": 5.0}, {"name": "flow"}, "there 5.0"),
        ("wan", "UniPCMultistepScheduler", {"flow_shift": 3.0}, {"name": "flow", "shift": {"kind": "root"}}, ""),
        ("cosmos", "EDMEulerScheduler", {"sigma_data": 1.0}, {"name": "edm"}, "sigma_data is 0.5, there 1.0"),
        ("cogvideox", "DDIMScheduler", {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"},
         {"name": "ddpm", "prediction": "v", "schedule": "cosine"}, ""),
    ],
)  # fmt: skip
def test_shifts_and_levels_are_compared_and_never_refused(
    tmp_path: Path, variant: str, scheduler: str, settings: dict, objective: dict, key: str
) -> None:
    schedule(tmp_path, scheduler, **settings)
    config = configured(tmp_path, variant, objective)
    lines = compare_with_published(config.modules, Bundle(config).dit, new=True)
    assert len(lines) == bool(key)
    assert all(key in line for line in lines)


@pytest.mark.parametrize(
    ("variant", "text", "keys"),
    [
        ("cogvideox", {"max_text_tokens": 5}, ["text.padding=mask"]),
        ("cogvideox", {"max_text_tokens": 5, "padding": "text"}, []),
        ("cogvideox", {"max_text_tokens": 4, "padding": "text"}, ["text.max_text_tokens=4"]),
        ("wan", {"padding": "text"}, ["text.padding=text"]),
        ("wan", {}, []),
        ("hunyuan", {}, ["text.template", "text.skipped_layers=0"]),
        ("hunyuan", {"template": "a {}", "template_tokens": 1, "skipped_layers": 2}, []),
    ],
)
def test_text_that_is_encoded_otherwise_is_said(
    tmp_path: Path, variant: str, text: dict, keys: list[str]
) -> None:
    model: DiffusersConfig = publish(tmp_path, variant)
    settings = publish_text(tmp_path) | {"kind": "transformers"} | text
    config = TrainConfig.model_validate({"model": model, "text": settings})
    *lines, objective = compare_with_published(config.modules, build_denoiser(model, 4, 8), new=True)
    assert len(lines) == len(keys)
    assert all(key in line for key, line in zip(keys, lines, strict=True))
    assert objective.endswith(f"{tmp_path} has no scheduler/scheduler_config.json")


def test_keys_that_a_family_does_not_read_are_said(tmp_path: Path) -> None:
    config = run_config(tmp_path, "wan")
    assert isinstance(config.model, DiffusersConfig)
    for update, lines in (
        ({"guidance": 6.0, "fps": 24.0}, ["model.guidance=6.0", "model.fps=24.0"]),
        ({"text_tokens": 8}, []),
    ):
        model = config.model.model_copy(update=update)
        changed = config.model_copy(update={"model": model})
        *compared, _ = compare_with_published(changed.modules, build_denoiser(model, 24, 8), new=True)
        assert [line.partition(" ")[0] for line in compared] == lines
