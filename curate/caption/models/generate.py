"""Letting a transformers model write, so that the same question always gets the same answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from curate.caption.models.backend import Ask, Draft, draft
from curate.models.clip_frames import Fault
from curate.models.device import inference
from loader.errors import RunError

# Of the likeliest tokens, those that make up this share are drawn from, where a draw is asked for.
_TOP_P = 0.9


def answers(
    model: Any,
    tokenizer: Any,
    asks: Sequence[Ask],
    inputs: Sequence[Mapping[str, Any] | Fault],
    largest: int,
    threads: int,
) -> list[Draft | Fault]:
    """What a model writes to each question.

    On the CPU questions are answered one by one; on a GPU those of equal shape share a pass.

    Args:
        model: of transformers.
        tokenizer: its own.
        asks: the questions.
        inputs: tensors of each, a batch of one; or why there are none.
        largest: questions in a pass.
        threads: of the processor.
    """
    limit = token_limit(model.config)
    checked = [_within(one, ask, limit) for one, ask in zip(inputs, asks, strict=True)]
    results: dict[int, Draft | Fault] = {at: one for at, one in enumerate(checked) if isinstance(one, Fault)}
    ready = {at: one for at, one in enumerate(checked) if not isinstance(one, Fault)}
    at_once = largest if model.device.type == "cuda" else 1
    ends = end_tokens(model, tokenizer)
    pad = min(ends) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    for members in groups({at: shape_of(one) for at, one in ready.items()}, asks, at_once):
        batch = stacked([ready[at] for at in members])
        tokens_in = batch["input_ids"].shape[1]
        for at, (tokens, stopped) in zip(
            members, written(model, batch, asks[members[0]], ends, pad, threads), strict=True
        ):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            results[at] = draft(text, stopped, tokens_in, len(tokens))
    return [results[at] for at in range(len(asks))]


def groups(shapes: Mapping[int, object], asks: Sequence[Ask], largest: int) -> list[list[int]]:
    """Which questions go through the model at once: greedy ones of equal shape.

    Equal shapes need no padding, which would change the numbers. A draw uses one stream of random numbers, so
    drawn answers are made one by one.

    Args:
        shapes: of a question's tensors, by its number.
        asks: all questions.
        largest: questions at once.

    Returns:
        Numbers of the questions of each pass.
    """
    alike: dict[object, list[int]] = {}
    for at, shape in shapes.items():
        alone = at if asks[at].temperature else None
        alike.setdefault((shape, asks[at].max_new_tokens, alone), []).append(at)
    return [
        members[start : start + largest]
        for members in alike.values()
        for start in range(0, len(members), largest)
    ]


def stacked(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Inputs of several questions as those of one batch; all have the same shapes."""
    import torch

    first = inputs[0]
    if len(inputs) == 1:
        return dict(first)
    return {
        name: torch.cat([one[name] for one in inputs])
        if isinstance(first[name], torch.Tensor)
        else [value for one in inputs for value in one[name]]
        for name in first
    }


def shape_of(inputs: Mapping[str, Any]) -> tuple[object, ...]:
    """What must be equal for two questions to share a batch."""
    return tuple((name, tuple(getattr(value, "shape", ()))) for name, value in sorted(inputs.items()))


def written(
    model: Any, inputs: Mapping[str, Any], ask: Ask, ends: frozenset[int], pad: int, threads: int
) -> list[tuple[list[int], bool]]:
    """Lets the model write.

    Args:
        model: of transformers, with ``generate``.
        inputs: of one or more questions of one shape.
        ask: one of them, for what they share: temperature, seed, most tokens.
        ends: tokens at which the model ends by itself.
        pad: token that fills answers up.
        threads: of the processor.

    Returns:
        For each question the tokens written, without the one that ends them, and whether there was one.

    Raises:
        RunError: the GPU's memory is not enough for one question.
    """
    import torch

    device = model.device
    moved = {
        name: _moved(value, device, model.dtype) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    # The model's own habits (a temperature of 1e-6, a top-k of 1) must not decide what a seed means.
    draw: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if ask.temperature:
        draw = {"do_sample": True, "temperature": ask.temperature, "top_p": _TOP_P, "top_k": 0}
    devices = [device] if device.type == "cuda" else []
    # Weights have their type already; "cpu" is to say: no automatic casts.
    with torch.random.fork_rng(devices=devices), inference("cpu", threads):
        torch.manual_seed(ask.seed)
        try:
            tokens = model.generate(
                **moved,
                **draw,
                num_beams=1,
                max_new_tokens=ask.max_new_tokens,
                eos_token_id=sorted(ends),
                pad_token_id=pad,
            )
        except torch.cuda.OutOfMemoryError:
            raise RunError(
                "the GPU's memory is not enough for the caption model; set captions.batch_clips or"
                " captions.short_side_px lower, or take a smaller model"
            ) from None
    found = tokens[:, inputs["input_ids"].shape[1] :].tolist()
    return [_until(answer, ends) for answer in found]


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens at which a model ends: those its generation settings name, and the tokenizer's own."""
    named = model.generation_config.eos_token_id
    listed = [named] if isinstance(named, int) else list(named or ())
    if tokenizer.eos_token_id is not None:
        listed.append(tokenizer.eos_token_id)
    return frozenset(listed)


def token_limit(config: Any) -> int | None:
    """The most tokens a model has positions for, where its configuration says so."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit else None


def _within(inputs: Mapping[str, Any] | Fault, ask: Ask, limit: int | None) -> Mapping[str, Any] | Fault:
    if isinstance(inputs, Fault) or limit is None:
        return inputs
    needed = inputs["input_ids"].shape[1] + ask.max_new_tokens
    if needed <= limit:
        return inputs
    return Fault(
        f"the model takes {limit} tokens, and question and caption need {needed}; set captions.window_frames,"
        " fps, short_side_px or max_new_tokens lower"
    )


def _moved(value: Any, device: Any, dtype: Any) -> Any:
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def _until(tokens: list[int], ends: frozenset[int]) -> tuple[list[int], bool]:
    for at, token in enumerate(tokens):
        if token in ends:
            return tokens[:at], True
    return tokens, False
