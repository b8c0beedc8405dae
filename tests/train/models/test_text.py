import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.text import HashedTextConfig, TransformersTextConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.encoders.cut_captions import CutCaptions
from reelweave.train.models.encoders.text import HashedTextEncoder, TransformersTextEncoder
from tests.train import published

CAPTIONS = ["A cat jumps over the dog", "", "a dog"]


def hashed(**settings) -> HashedTextEncoder:
    torch.manual_seed(0)
    return HashedTextEncoder(HashedTextConfig(**settings))


def test_hashed_contexts_are_padded_to_the_longest_caption():
    context_BLD, mask_BL = hashed(width=16)(CAPTIONS)
    assert context_BLD.shape == (3, 7, 16)
    assert mask_BL.sum(dim=1).tolist() == [7, 1, 3]


def test_hashed_lengths_are_known_without_encoding():
    text = HashedTextEncoder(HashedTextConfig(vocabulary=64, width=16, max_text_tokens=3))
    captions = ["a dog runs over the hill", "a", ""]
    assert text.lengths(captions) == text(captions)[1].sum(dim=1).tolist() == [4, 2, 1]


def test_hashed_words_ignore_case_and_punctuation():
    encoder = hashed()
    assert torch.equal(encoder(["A dog, running!"])[0], encoder(["a DOG running"])[0])


def test_hashed_captions_are_cut_at_max_text_tokens():
    assert hashed(max_text_tokens=3)(["one two three four five"])[1].shape == (1, 4)


@pytest.mark.parametrize("kind", ["dit", "mmdit", "st_dit"])
def test_hashed_words_have_no_order_to_models_of_ours_as_the_docs_say(kind):
    bundle = Bundle(TrainConfig(model={"kind": kind, "hidden": 48, "heads": 2, "layers": 1})).double()
    for parameter in bundle.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    x_BCTHW = torch.randn(1, bundle.tokenizer.channels, 2, 4, 4, dtype=torch.float64)
    time_B = torch.full((1,), 0.5, dtype=torch.float64)
    captions = ("a red dog bites a blue man", "a blue man bites a red dog", "a small boat")
    with torch.no_grad():
        first, turned, other = (bundle.dit(x_BCTHW, time_B, *bundle.text([caption])) for caption in captions)
    torch.testing.assert_close(turned, first, rtol=0, atol=1e-12)
    assert (other - first).abs().max() > 0.01


def test_hashed_embeddings_are_trained():
    encoder = hashed()
    encoder(CAPTIONS)[0].sum().backward()
    assert encoder.table.weight.grad.any()


def test_a_word_has_the_same_row_in_every_process_and_version():
    encoder = hashed()
    with torch.no_grad():
        encoder.table.weight[:] = torch.arange(4097)[:, None]
    assert encoder(["a cat jumps"])[0][0, :, 0].tolist() == [0, 2113, 1844, 2426]


@pytest.fixture(scope="module")
def vocabulary():
    return published.vocabulary()


@pytest.fixture(scope="module")
def t5(tmp_path_factory, vocabulary):
    """A tiny T5 with its tokenizer, saved as people save them: both halves in one file."""
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(vocab_size=9, **sizes)).save_pretrained(folder)
    vocabulary.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory, vocabulary):
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=9, **sizes)).save_pretrained(folder)
    vocabulary.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_a_local_model_gives_a_context_for_every_caption(family, request):
    encoder = TransformersTextEncoder(TransformersTextConfig(name=str(request.getfixturevalue(family))))
    context_BLD, mask_BL = encoder(CAPTIONS)
    assert encoder.width == 16
    assert context_BLD.shape == (3, 6, 16)
    assert context_BLD.dtype == torch.float32
    assert mask_BL.sum(dim=1).tolist() == [6, 1, 2]


def test_a_caption_reads_the_same_alone_and_padded(t5):
    encoder = TransformersTextEncoder(TransformersTextConfig(name=str(t5)))
    torch.testing.assert_close(encoder(CAPTIONS)[0][2, :2], encoder(["a dog"])[0][0], atol=1e-5, rtol=1e-5)


def test_of_a_t5_only_the_encoder_is_kept_and_frozen(t5):
    encoder = TransformersTextEncoder(TransformersTextConfig(name=str(t5)))
    names = [name for name, _ in encoder.named_parameters()]
    assert not [name for name in names if "decoder" in name]
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_captions_are_cut_at_max_text_tokens(t5):
    encoder = TransformersTextEncoder(TransformersTextConfig(name=str(t5), max_text_tokens=2))
    assert encoder(CAPTIONS)[0].shape[1] == 2


def test_weights_take_the_type_asked_for(bert):
    encoder = TransformersTextEncoder(TransformersTextConfig(name=str(bert), dtype="bfloat16"))
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.bfloat16}


def test_a_missing_model_is_named_with_the_way_out(tmp_path):
    name = str(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"nothing.*local folder"):
        TransformersTextEncoder(TransformersTextConfig(name=name))


def test_weights_in_a_pickle_are_refused(bert, tmp_path):
    from safetensors.torch import load_file

    for path in bert.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.save(load_file(bert / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        TransformersTextEncoder(TransformersTextConfig(name=str(tmp_path)))


def test_captions_that_are_cut_off_are_counted_by_both_encoders(tmp_path):
    long, short = "a cat jumps over the dog", "a dog"
    template = {"template": "the dog {}", "template_tokens": 2}
    where = published.publish_text(tmp_path, kind="T5")
    transformers = TransformersTextEncoder(TransformersTextConfig(**where, **template, max_text_tokens=6))
    for encoder in (hashed(max_text_tokens=5), hashed(max_text_tokens=6), transformers):
        expected = encoder.most_tokens == 5
        assert encoder.cut([long, short, ""]) == [expected, False, False]
    assert transformers.cut([f"{long} a"]) == [True]


def test_cut_captions_are_told_at_powers_of_ten():
    counted = CutCaptions(hashed(max_text_tokens=2))
    assert counted.add(["a dog"]) is None
    assert counted.add(["a dog", "a dog jumps"]).startswith(
        "1 of 3 captions so far have more than text.max_text_tokens = 2"
    )
    assert counted.add(["a dog jumps"] * 8) is None
    assert counted.add(["a dog jumps"] * 40).startswith("49 of 51 captions")
    assert counted.add(["a dog jumps"] * 50) is None
    assert counted.add(["a dog jumps"]).startswith("100 of 102 captions")
