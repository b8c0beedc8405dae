"""Text embeddings, through real transformers encoders of random weights."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from reelweave.curate.models.text_embed import TextEmbedConfig, TextEmbedder, passes
from reelweave.loader.errors import RunError, UsageError
from tests.tiny_models import WORDS, tiny_text_encoder

KINDS = ("t5", "umt5", "clip", "bert")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: tiny_text_encoder(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def embedder(model: Path, **changes: object) -> TextEmbedder:
    return TextEmbedder(TextEmbedConfig(model=str(model), device="cpu", **changes))


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_holds_what_the_encoder_makes_of_each_token(models: dict[str, Path], kind: str) -> None:
    import transformers

    folder = models[kind]
    classes = {
        "t5": transformers.T5EncoderModel,
        "umt5": transformers.UMT5EncoderModel,
        "clip": transformers.CLIPTextModel,
        "bert": transformers.BertModel,
    }
    model = classes[kind].from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        list(WORDS), padding=True, truncation=True, max_length=8, return_tensors="pt"
    )
    with torch.no_grad():
        states = model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
        ).last_hidden_state
    work = embedder(folder, max_tokens=8, dtype="float32")
    work.check()
    found = work(WORDS)
    for array, row, mask in zip(found, states.numpy(), tokens["attention_mask"].numpy(), strict=True):
        assert array.shape == (mask.sum(), 16)
        np.testing.assert_allclose(array, row[mask == 1], atol=1e-5)


def test_neighbours_in_a_batch_change_nothing(models: dict[str, Path]) -> None:
    work = embedder(models["t5"])
    together = work([*WORDS, ""])
    for words, array in zip([*WORDS, ""], together, strict=True):
        np.testing.assert_array_equal(work([words])[0], array)


def test_on_a_gpu_the_padded_length_of_a_caption_depends_on_itself_only() -> None:
    assert passes([3, 64, 65, 250, 9], limit=250, device="cuda", batch=2) == [
        (64, [0, 1]),
        (64, [4]),
        (128, [2]),
        (250, [3]),
    ]


def test_long_captions_are_cut(models: dict[str, Path]) -> None:
    assert len(embedder(models["t5"], max_tokens=5)(["snow " * 40])[0]) == 5


def test_a_model_with_few_positions_sets_its_own_limit(models: dict[str, Path]) -> None:
    assert len(embedder(models["clip"], max_tokens=256)(["snow " * 40])[0]) == 8


def test_arrays_are_stored_small(models: dict[str, Path]) -> None:
    assert embedder(models["t5"])(["snow"])[0].dtype == np.float16


def test_a_worker_gets_the_configuration_and_not_the_model(models: dict[str, Path]) -> None:
    work = embedder(models["t5"])
    before = work(["snow"])[0]
    sent = pickle.dumps(work)
    assert len(sent) < 10_000
    np.testing.assert_array_equal(pickle.loads(sent)(["snow"])[0], before)


def test_numbers_the_type_cannot_hold_stop_the_run(models: dict[str, Path], tmp_path: Path) -> None:
    import transformers

    folder = tiny_text_encoder(tmp_path / "loud", "t5")
    model = transformers.T5EncoderModel.from_pretrained(folder)
    model.encoder.final_layer_norm.weight.data *= 1e6
    model.save_pretrained(folder)
    with pytest.raises(RunError, match="dtype=float32"):
        embedder(folder)(["snow"])
    assert np.isfinite(embedder(folder, dtype="float32")(["snow"])[0]).all()


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_text_encoder(tmp_path / "model", "t5")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="holds no weights"):
        embedder(folder).check()


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tiny_text_encoder(tmp_path / "model", "t5")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(UsageError, match="holds no tokenizer"):
        embedder(folder).check()


def test_a_tokenizer_of_another_model_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    import transformers

    folder = tiny_text_encoder(tmp_path / "model", "t5")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"more{number}" for number in range(50)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(UsageError, match="tokenizer of another model"):
        embedder(folder)(["snow"])


def test_a_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no folder"):
        TextEmbedder(TextEmbedConfig(model="./gone")).check()
