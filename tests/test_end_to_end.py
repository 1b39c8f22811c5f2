"""Eight people speak at once: real model, real sockets, one encoder run per tick."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from app.bench.scoring import word_error_rate
from engine.config import EngineConfig
from engine.core import Engine, build_engine
from tests.app.serving import FINISH, START, Message, Served, hear_all, say, serving
from tests.conftest import Clip, LoadClip

N_SPEAKERS = 8
PATIENCE_S = 90.0  # the slowest machine that should pass
SILENCE = np.zeros(8_000, dtype=np.float32)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return build_engine(EngineConfig())


async def speak(served: Served, samples: np.ndarray) -> list[Message]:
    """One client: start, audio in 100 ms chunks as in a call but without waiting, finish."""
    async with served.connect() as client:
        await client.send(START)
        await say(client, np.concatenate([SILENCE, samples, SILENCE]))
        await client.send(FINISH)
        return await hear_all(client)


def text_of(messages: list[Message]) -> str:
    return " ".join(message["text"] for message in messages if message["type"] == "final")


@pytest.mark.timeout(180)
async def test_each_of_eight_speakers_gets_its_own_words(
    engine: Engine, english_clips: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    clips = english_clips[:N_SPEAKERS]
    assert len(clips) == N_SPEAKERS
    async with serving(factory=lambda _: engine) as served:
        await served.until_ready()
        async with asyncio.timeout(PATIENCE_S):
            heard = await asyncio.gather(*(speak(served, load_clip(clip.name)) for clip in clips))
        for clip, messages in zip(clips, heard, strict=True):
            assert word_error_rate([clip.reference], [text_of(messages)]) < 0.25, (clip.name, text_of(messages))
            assert messages[-1] == {"type": "closed", "reason": "finished"}
        alone = await served.metric('tickscribe_encoder_batch_size_bucket{le="1.0"}')
        ticks = await served.metric("tickscribe_encoder_batch_size_count")
        assert alone < ticks, "no encoder run was shared"
        assert (await served.stats())["sessions"] == 0


async def test_rubbish_from_one_client_harms_no_other(
    engine: Engine, english_clips: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    clip = english_clips[0]

    async def send_rubbish(message: str | bytes) -> list[Message]:
        async with served.connect() as client:
            await client.send(START)
            await client.send(message)
            return await hear_all(client)

    async def vanish() -> None:
        async with served.connect() as client:
            await client.send(START)
            await client.send(load_clip(clip.name)[:16_000].tobytes())
            client.transport.abort()

    async with serving(factory=lambda _: engine) as served:
        await served.until_ready()
        async with asyncio.timeout(PATIENCE_S):
            good, text, odd, deep, *_ = await asyncio.gather(
                speak(served, load_clip(clip.name)),
                send_rubbish("hello"),
                send_rubbish(b"\0\0\0"),
                send_rubbish("[" * 10_000),
                vanish(),
            )
        assert word_error_rate([clip.reference], [text_of(good)]) < 0.25
        for messages, code in ((text, "bad_message"), (odd, "audio_format"), (deep, "bad_message")):
            error = next(message for message in messages if message["type"] == "error")
            assert error["code"] == code and error["message"].endswith(".")
            assert messages[-1] == {"type": "closed", "reason": "error"}
        for _ in range(200):  # the vanished client's place is given back
            if (await served.stats())["sessions"] == 0:
                break
            await asyncio.sleep(0.05)
        assert (await served.stats())["sessions"] == 0
