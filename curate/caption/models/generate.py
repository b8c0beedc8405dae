"""Deterministic text generation with a transformers model."""

from collections.abc import Mapping, Sequence
from typing import Any

from reelweave.curate.caption.models.backend import Ask, Draft, draft
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.device import inference
from reelweave.loader.errors import RunError

# Nucleus sampling: cumulative probability of the candidate tokens, for a temperature above 0.
_TOP_P = 0.9


def answers(
    model: Any,
    tokenizer: Any,
    asks: Sequence[Ask],
    inputs: Sequence[Mapping[str, Any] | Fault],
    largest: int,
    threads: int,
) -> list[Draft | Fault]:
    """Generate the answer to each question.

    On the CPU questions are answered one by one; on a GPU those of equal shape share a batch.

    Args:
        model: Model of transformers.
        tokenizer: Tokenizer of the model.
        asks: Questions.
        inputs: Tensors of each question, a batch of one; or a fault.
        largest: Maximum batch size.
        threads: CPU threads.
    """
    limit = token_limit(model.config)
    checked = [_within(model_input, ask, limit) for model_input, ask in zip(inputs, asks, strict=True)]
    results: dict[int, Draft | Fault] = {
        at: checked_input for at, checked_input in enumerate(checked) if isinstance(checked_input, Fault)
    }
    ready = {
        at: checked_input for at, checked_input in enumerate(checked) if not isinstance(checked_input, Fault)
    }
    at_once = largest if model.device.type == "cuda" else 1
    ends = end_tokens(model, tokenizer)
    pad = min(ends) if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    for members in groups({at: shape_of(model_input) for at, model_input in ready.items()}, asks, at_once):
        batch = stack_inputs([ready[at] for at in members])
        tokens_in = batch["input_ids"].shape[1]
        for at, (tokens, stopped) in zip(
            members, generate(model, batch, asks[members[0]], ends, pad, threads), strict=True
        ):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            results[at] = draft(text, stopped, tokens_in, len(tokens))
    return [results[at] for at in range(len(asks))]


def groups(shapes: Mapping[int, object], asks: Sequence[Ask], largest: int) -> list[list[int]]:
    """Group questions into batches: greedy ones of equal shape together.

    Equal shapes need no padding, which would change the numbers. Sampling uses one stream of random numbers,
    so sampled answers are generated one by one.

    Args:
        shapes: Shape of each question's tensors, by its index.
        asks: All questions.
        largest: Maximum batch size.

    Returns:
        Indices of the questions in each batch.
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


def stack_inputs(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Concatenate the inputs of several questions of equal shape to one batch."""
    import torch

    first = inputs[0]
    if len(inputs) == 1:
        return dict(first)
    return {
        name: torch.cat([model_input[name] for model_input in inputs])
        if isinstance(first[name], torch.Tensor)
        else [value for model_input in inputs for value in model_input[name]]
        for name in first
    }


def shape_of(inputs: Mapping[str, Any]) -> tuple[object, ...]:
    """Return a key that is equal for questions that may share a batch."""
    return tuple((name, tuple(getattr(value, "shape", ()))) for name, value in sorted(inputs.items()))


def generate(
    model: Any, inputs: Mapping[str, Any], ask: Ask, ends: frozenset[int], pad: int, threads: int
) -> list[tuple[list[int], bool]]:
    """Generate answers for one batch.

    Args:
        model: Model of transformers, with ``generate``.
        inputs: Tensors of one or more questions of equal shape.
        ask: Any question of the batch, for the shared temperature, seed and token limit.
        ends: End-of-sequence tokens.
        pad: Padding token.
        threads: CPU threads.

    Returns:
        The generated tokens of each question without the end token, and True where the model ended by itself.

    Raises:
        RunError: The GPU memory is not enough for one question.
    """
    import torch

    device = model.device
    moved = {
        name: _move_to_device(value, device, model.dtype) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    # The model's own defaults (a temperature of 1e-6, a top-k of 1) must not override the seed.
    draw: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if ask.temperature:
        draw = {"do_sample": True, "temperature": ask.temperature, "top_p": _TOP_P, "top_k": 0}
    devices = [device] if device.type == "cuda" else []
    # Weights have their dtype already; "cpu" disables automatic casts.
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
    new_tokens = tokens[:, inputs["input_ids"].shape[1] :].tolist()
    return [_until(answer, ends) for answer in new_tokens]


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the end-of-sequence tokens of the model's generation settings and of its tokenizer."""
    named = model.generation_config.eos_token_id
    listed = [named] if isinstance(named, int) else list(named or ())
    if tokenizer.eos_token_id is not None:
        listed.append(tokenizer.eos_token_id)
    return frozenset(listed)


def token_limit(config: Any) -> int | None:
    """Return the maximum number of tokens by the model's positions, where its configuration states it."""
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


def _move_to_device(value: Any, device: Any, dtype: Any) -> Any:
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def _until(tokens: list[int], ends: frozenset[int]) -> tuple[list[int], bool]:
    for at, token in enumerate(tokens):
        if token in ends:
            return tokens[:at], True
    return tokens, False
