"""Captions of requested videos that are longer than a model reads."""

from collections.abc import Sequence

from reelweave.pipelines.sampling.requests import Request
from reelweave.pipelines.terminal.console import stderr
from reelweave.train.models.encoders.cut_captions import text_limits
from reelweave.train.models.encoders.text import TextEncoder
from reelweave.train.sampling.config import SampleConfig


def say_cut_captions(text: TextEncoder, configs: Sequence[SampleConfig], requests: Sequence[Request]) -> None:
    """Say which captions and negative prompts the text encoder cuts off.

    Args:
        text: the encoder.
        configs: configuration of each video.
        requests: the videos.
    """
    captions = list(
        dict.fromkeys(
            caption
            for request, config in zip(requests, configs, strict=True)
            for caption in (request.prompt, config.negative_prompt)
            if caption
        )
    )
    for limit in text_limits(text):
        cut = [caption for caption, is_cut in zip(captions, limit.cut(captions), strict=True) if is_cut]
        if cut:
            stderr().print(
                f"{len(cut):,} of {len(captions):,} captions have more than {limit.key} = {limit.tokens} tokens; the"
                f" rest is cut off. The first: {cut[0][:80]!r}",
                markup=False,
                soft_wrap=True,
            )
