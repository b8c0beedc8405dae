"""Text encoders within published pipelines: the context is what the pipeline makes of a caption."""

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.text import TransformersTextConfig
from reelweave.train.models.encoders.cut_captions import CutCaptions
from reelweave.train.models.encoders.text import TransformersTextEncoder
from tests.train.published import publish_text

CAPTIONS = ["a cat jumps over the dog", "the dog", "a"]


def encoder(folder, kind, **settings):
    place = publish_text(folder, kind=kind)
    return TransformersTextEncoder(TransformersTextConfig(**place, **settings))


def pipeline(kind, *encoders, **more):
    names = dict.fromkeys(("tokenizer", "text_encoder", "transformer", "vae", "scheduler"))
    for number, one in zip(("", "_2"), encoders, strict=False):
        names |= {f"tokenizer{number}": one.tokenizer, f"text_encoder{number}": one.model}
    return kind(**names, **more)


def test_wans_captions_are_read_under_their_mask_and_end_in_zeros(diffusers, tmp_path):
    text = encoder(tmp_path, "UMT5", max_text_tokens=8)
    context_BMD, mask_BM = text(CAPTIONS)
    assert mask_BM.sum(dim=1).tolist() == [6, 2, 1]
    expected = pipeline(diffusers.WanPipeline, text)._get_t5_prompt_embeds(CAPTIONS, max_sequence_length=8)
    assert not expected[:, 6:].any()
    torch.testing.assert_close(context_BMD * mask_BM[..., None], expected[:, :6])


def test_cogvideox_reads_padding_as_text(diffusers, tmp_path):
    text = encoder(tmp_path, "T5", max_text_tokens=8, padding="text")
    context_BMD, mask_BM = text(CAPTIONS)
    expected = pipeline(diffusers.CogVideoXPipeline, text)._get_t5_prompt_embeds(
        CAPTIONS, max_sequence_length=8
    )
    torch.testing.assert_close(context_BMD, expected)
    assert mask_BM.all()
    masked = TransformersTextEncoder(text.config.model_copy(update={"padding": "mask"}))
    assert not torch.allclose(masked(CAPTIONS)[0][1, :2], expected[1, :2], atol=1e-4)


def test_hunyuans_captions_stand_in_a_template_behind_one_vector_for_all(diffusers, tmp_path):
    pooled = publish_text(tmp_path, "_2", "CLIP", width=4)
    template = {"template": "the dog a {}", "crop_start": 3}
    text = encoder(
        tmp_path,
        "Llama",
        max_text_tokens=5,
        template=template["template"],
        template_tokens=3,
        skipped_layers=2,
        pooled=pooled | {"max_text_tokens": 6},
    )
    context_BMD, mask_BM = text(CAPTIONS)
    pipe = pipeline(diffusers.HunyuanVideoPipeline, text, text.pooled)
    expected, expected_mask = pipe._get_llama_prompt_embeds(CAPTIONS, template, max_sequence_length=5)
    assert mask_BM[:, 0].all()
    assert torch.equal(mask_BM[:, 1:], expected_mask.bool())
    real = mask_BM[:, 1:]
    torch.testing.assert_close(context_BMD[:, 1:][real], expected[real])
    vectors = pipe._get_clip_prompt_embeds(CAPTIONS, max_sequence_length=6)
    torch.testing.assert_close(context_BMD[:, 0, :4], vectors)
    assert not context_BMD[:, 0, 4:].any()
    assert not any(parameter.requires_grad for parameter in text.parameters())


def test_a_vector_wider_than_the_context_is_refused(tmp_path):
    pooled = publish_text(tmp_path, "_2", "CLIP", width=16)
    with pytest.raises(UsageError, match=r"text\.pooled\.name.*16 values"):
        encoder(tmp_path, "T5", pooled=pooled)


def test_empty_captions_have_a_token_even_among_themselves(tmp_path):
    text = encoder(tmp_path, "UMT5", max_text_tokens=8)
    context_BMD, mask_BM = text(["", ""])
    assert context_BMD.shape[:2] == mask_BM.shape == (2, 1)
    assert mask_BM.all()
    assert context_BMD.isfinite().all()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("UMT5", {"max_text_tokens": 4}),
        ("T5", {"padding": "text", "max_text_tokens": 5}),
        ("Bert", {"template": "a cat {} the dog", "template_tokens": 2, "max_text_tokens": 3}),
    ],
)
def test_lengths_are_known_without_encoding(tmp_path, kind, settings):
    text = encoder(tmp_path, kind, **settings)
    for captions in ([*CAPTIONS, ""], [""]):
        _, mask_BM = text(captions)
        assert text.lengths(captions) == mask_BM.sum(dim=1).tolist()


def test_lengths_count_the_vector_for_all(tmp_path):
    place, pooled = publish_text(tmp_path), publish_text(tmp_path, "_2", kind="CLIP", width=6)
    text = TransformersTextEncoder(TransformersTextConfig(**place, pooled=pooled, max_text_tokens=4))
    assert text.lengths(CAPTIONS) == text(CAPTIONS)[1].sum(dim=1).tolist()


def test_captions_that_the_pooled_encoder_cuts_off_are_counted_apart(tmp_path):
    place, pooled = publish_text(tmp_path), publish_text(tmp_path, "_2", kind="CLIP", width=6)
    config = TransformersTextConfig(**place, pooled=pooled | {"max_text_tokens": 6}, max_text_tokens=40)
    text = TransformersTextEncoder(config)
    long, short = " ".join([CAPTIONS[0]] * 3), "a"
    assert text.cut([short, long]) == [False, False]
    assert text.cut_pooled([short, long]) == [False, True]
    assert CutCaptions(text).add([short, long]) == (
        "1 of 2 captions so far have more than text.pooled.max_text_tokens = 6 tokens; the rest of each is cut off"
    )
    alone = TransformersTextEncoder(TransformersTextConfig(**place, max_text_tokens=40))
    assert alone.cut_pooled([long]) == [False]
