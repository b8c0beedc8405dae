"""Captions from an OpenAI-style server with 64 requests in flight, beside a bare client of the same server.

    python -m tests.bench.caption_endpoint [--clips 512] [--mean-s 1.0] [--spread 0.4] [--bad 0.03] [--rounds 3]

The server is a process of its own, which reads each question and answers after a time drawn from a lognormal
distribution, as models whose answers differ in length do; some answers are empty, and asked for again. The floor is
httpx on asyncio, with questions that are encoded beforehand, as many as we send, and 64 in flight. Ours is the
captioner of `reelweave curate`: it asks, checks and asks again, in calls of --batch clips, one after the other, as a
worker does. Pictures are decoded and encoded ahead, by other workers: prepare_ms of a processor for a clip. Prints
JSON.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import httpx

from reelweave.curate.caption import Caption, CaptionConfig, Captioner
from reelweave.curate.caption.captioner import CaptionInput
from reelweave.curate.caption.models.endpoint import question_of
from tests.media import write_video

IN_FLIGHT = 64
_PREPARED = 20
WORDS = "A red kite flies over the sea, and a child runs along the beach below it."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=512)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--mean-s", type=float, default=1.0)
    parser.add_argument("--spread", type=float, default=0.4, help="sigma of the logarithm")
    parser.add_argument("--bad", type=float, default=0.03, help="share of empty answers")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(
        target=serve, args=(there, options.mean_s, options.spread, options.bad), daemon=True
    )
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    config = CaptionConfig(
        model="teller", backend="endpoint", endpoint_url=url, batch_clips=max(options.batch)
    )
    with tempfile.TemporaryDirectory() as folder:
        clip = write_video(Path(folder) / "a.mp4", (125,), size=(832, 480)).read_bytes()
    captioner = Captioner(config)
    began = time.process_time()
    for _ in range(_PREPARED):
        view = captioner.prepare(clip)
    prepare_ms = 1000 * (time.process_time() - began) / _PREPARED
    assert isinstance(view, CaptionInput)
    body = json.dumps(question_of("teller", captioner.questions(view)[0])).encode()
    ways: dict[str, Callable[[], None]] = {"floor": lambda: asyncio.run(floor(url, body, options))}
    for batch in options.batch:
        ways[f"calls of {batch}"] = lambda batch=batch: ours(captioner, view, options.clips, batch)  # type: ignore[misc]
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            began, cpu = time.monotonic(), time.process_time()
            way()
            seconds[name].append((time.monotonic() - began, time.process_time() - cpu))
    server.terminate()
    rates = {
        name: options.clips / statistics.median(wall for wall, _ in some) for name, some in seconds.items()
    }
    result = {
        name: {
            "captions_per_s": round(rate, 1),
            "of_floor": round(rate / rates["floor"], 3),
            "cpu_ms": round(1000 * statistics.median(cpu for _, cpu in seconds[name]) / options.clips, 1),
        }
        for name, rate in rates.items()
    }
    facts = {
        "question_kb": round(len(body) / 1000),
        "pictures": len(view.files),
        "prepare_ms": round(prepare_ms, 1),
    }
    print(json.dumps({**facts, **vars(options), "ways": result}, indent=1))
    return 0


def ours(captioner: Captioner, view: CaptionInput, clips: int, batch: int) -> None:
    for first in range(0, clips, batch):
        answers = captioner.answer([view] * min(batch, clips - first))
        assert all(isinstance(answer, Caption) for answer in answers)


async def floor(url: str, body: bytes, options: argparse.Namespace) -> None:
    """Send as many questions as there are clips, and those that are answered badly once more."""
    limits = httpx.Limits(max_connections=IN_FLIGHT, max_keepalive_connections=IN_FLIGHT)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def ask() -> None:
            async with slots:
                content = ""
                while not content:
                    answer = await client.post(f"{url}/chat/completions", content=body)
                    content = answer.json()["choices"][0]["message"]["content"]

        await asyncio.gather(*(ask() for _ in range(options.clips)))


def serve(port: Connection, mean_s: float, spread: float, bad: float) -> None:
    """Answer questions, each after its own time, until this process is ended."""
    asyncio.run(_serve(port, mean_s, spread, bad))


async def _serve(port: Connection, mean_s: float, spread: float, bad: float) -> None:
    draw = random.Random(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            await reader.readexactly(head)
            await asyncio.sleep(mean_s * draw.lognormvariate(-(spread**2) / 2, spread))
            message = {"content": "" if draw.random() < bad else WORDS}
            content = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=256, limit=1 << 20)
    port.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _head(reader: asyncio.StreamReader) -> int:
    """Return the length of the body of the next question; 0 at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
    lines = head.decode("latin-1").lower().split("\r\n")
    return next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))


if __name__ == "__main__":
    sys.exit(main())
