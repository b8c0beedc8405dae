"""Folders of models whose publisher put Python files beside the weights; the code writes a file, and does no more."""

import json
from pathlib import Path

from tests.tiny_models import tiny_open_clip, tiny_text_encoder

MARK = "REELWEAVE_TEST_MARK"
"""Environment variable with the path of the file that the code writes."""

_CODE = f"""
import os
import pathlib
pathlib.Path(os.environ["{MARK}"]).write_text("ran")
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel
class OwnConfig(PretrainedConfig):
    model_type = "own"
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
OwnTokenizer = OwnProcessor = AutoTokenizer
"""
_MODELS = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForTextEncoding",
)


def unknown_model(folder: Path) -> Path:
    """A model of a type that transformers does not know, with code for all its parts."""
    tiny_text_encoder(folder, "t5")
    _add_code(folder)
    auto = {"AutoConfig": "own.OwnConfig"} | dict.fromkeys(_MODELS, "own.OwnModel")
    config = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": auto}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def known_model(folder: Path) -> Path:
    """A model of a known type, with code for its tokenizer."""
    tiny_text_encoder(folder, "t5")
    _add_code(folder)
    return folder


def open_clip_model(folder: Path, text: str) -> Path:
    """A folder of open_clip whose text tower is a model of transformers, with leave to run its code."""
    tiny_open_clip(folder)
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["text_cfg"] = {
        "hf_model_name": text,
        "hf_tokenizer_name": text,
        "hf_proj_type": "mlp",
        "context_length": 16,
        "tokenizer_kwargs": {"trust_remote_code": True},
    }
    path.write_text(json.dumps(config))
    return folder


def open_clip_tokenizer(folder: Path) -> Path:
    """A folder of open_clip whose tokenizer is of its publisher, with leave to run code."""
    tiny_open_clip(folder)
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["text_cfg"] |= {
        "hf_tokenizer_name": "its/own",
        "tokenizer_kwargs": {"trust_remote_code": True},
    }
    path.write_text(json.dumps(config))
    for file in [*known_model(folder / "other").iterdir()]:
        if "token" in file.name or file.name == "own.py":
            file.rename(folder / file.name)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    )
    return folder


def _add_code(folder: Path) -> None:
    (folder / "own.py").write_text(f"# {folder}\n{_CODE}")  # equal files are run once in a process
    path = folder / "tokenizer_config.json"
    auto = {"AutoTokenizer": ["own.OwnTokenizer", "own.OwnTokenizer"]}
    tokenizer = {**json.loads(path.read_text()), "tokenizer_class": "OwnTokenizer", "auto_map": auto}
    path.write_text(json.dumps(tokenizer))
    processor = {"processor_class": "OwnProcessor", "auto_map": {"AutoProcessor": "own.OwnProcessor"}}
    for name in ("preprocessor_config.json", "processor_config.json"):
        (folder / name).write_text(json.dumps(processor))
