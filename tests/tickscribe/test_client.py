"""The client against a real server with a scripted engine, and against everything else that may answer a URL."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.app.serving import serving
from tests.fakes import ScriptedEngine, loud, silence
from tickscribe.client import (
    BadAddress,
    ClientError,
    ConnectionLost,
    ServerFull,
    ServerRefused,
    ServerUnreachable,
    StreamEvent,
    open_session,
    pcm16,
    transcribe,
)
from tickscribe.messages import ErrorCode, FinalMessage, PartialMessage, SpeechStartedMessage, Start

READY = '{"type":"ready","session_id":"s","model":"m","sample_rate":16000}'
FINAL = (
    '{"type":"final","utterance":0,"text":"so far","start":0.0,"end":1.0,"reason":"finished","language":"en",'
    '"segments":[],"words":[]}'
)


async def spoken(*parts: np.ndarray) -> AsyncIterator[bytes]:
    for samples in parts:
        for begin in range(0, len(samples), 800):
            yield pcm16(samples[begin : begin + 800])


def texts(events: list[StreamEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, FinalMessage)]


@asynccontextmanager
async def answering(handler: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve WebSockets by `handler`; gives the URL."""
    async with serve(handler, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/v1/stream"


async def transcribed(
    url: str, start: Start | None = None, audio: AsyncIterator[bytes] | None = None
) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    await transcribe(url, start or Start(), audio or spoken(loud(2.0)), on_event=events.append)
    return events


# ------------------------------------------------------------------------------------------------ what goes well


async def test_events_arrive_typed_and_in_order() -> None:
    async with serving() as served:
        events = await transcribed(served.url(), audio=spoken(silence(0.5), loud(2.0), silence(1.0)))
    first, *between, last = events
    assert isinstance(first, SpeechStartedMessage)
    assert all(isinstance(event, PartialMessage) for event in between)
    assert isinstance(last, FinalMessage)
    assert texts(events) == ["a50 a50"]


async def test_finish_answers_what_is_still_open() -> None:
    async with serving() as served:
        assert texts(await transcribed(served.url(), audio=spoken(loud(1.5)))) == ["a50"]


async def test_interim_false_gives_finals_only() -> None:
    async with serving() as served:
        events = await transcribed(served.url(), Start(interim=False))
    assert not any(isinstance(event, PartialMessage) for event in events)
    assert texts(events) == ["a50 a50"]


async def test_the_greeting_names_model_and_languages() -> None:
    async with serving() as served, open_session(served.url(), Start()) as session:
        assert session.ready.model == "scripted"
        assert session.ready.languages == ("en", "de")


async def test_what_was_sent_before_the_source_failed_is_answered() -> None:
    async def torn() -> AsyncIterator[bytes]:
        async for piece in spoken(loud(1.0)):
            yield piece
        raise OSError("cable pulled")

    events: list[StreamEvent] = []
    async with serving() as served:
        with pytest.raises(OSError, match="cable pulled"):
            await transcribe(served.url(), Start(), torn(), on_event=events.append)
    assert texts(events) == ["a50"]


async def test_a_cancelled_client_leaves_no_session_behind() -> None:
    engine = ScriptedEngine()
    heard = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield pcm16(loud(1.0))
        await asyncio.Event().wait()

    async with serving(engine) as served:
        task = asyncio.create_task(transcribe(served.url(), Start(), endless(), on_event=lambda _: heard.set()))
        await asyncio.wait_for(heard.wait(), 10)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.to_thread(engine.closed.get, timeout=10)
        assert task.cancelled()
        assert engine.n_sessions == 0


@pytest.mark.parametrize("value", [-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
def test_pcm16_rounds_and_clips(value: float) -> None:
    (number,) = np.frombuffer(pcm16(np.array([value], np.float32)), "<i2")
    assert number == round(max(-1.0, min(1.0, value)) * 32767)


# ------------------------------------------------------------------------------------------------ what goes wrong


async def test_a_full_server_is_named() -> None:
    async with serving(max_sessions=1) as served, open_session(served.url(), Start()):
        with pytest.raises(ServerFull) as refused:
            await transcribed(served.url())
    assert refused.value.code is ErrorCode.SERVER_FULL


async def test_an_error_of_the_server_carries_its_code_and_sentence() -> None:
    async with serving() as served:
        with pytest.raises(ServerRefused, match="does not know the language 'tlh'") as refused:
            await transcribed(served.url(), Start(language="tlh"))
    assert refused.value.code is ErrorCode.UNKNOWN_LANGUAGE


async def test_a_crash_of_the_engine_is_an_error_not_an_empty_transcript() -> None:
    async with serving(ScriptedEngine(crash_above=0.6)) as served:
        with pytest.raises(ClientError):
            await transcribed(served.url(), audio=spoken(loud(1.0), loud(1.0, amplitude=0.9)))


async def test_finals_before_an_error_are_not_lost() -> None:
    async def failing(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(READY)
        await connection.send('{"type":"error","code":"overloaded","message":"Too much."}')
        await connection.send(FINAL)
        await connection.send('{"type":"closed","reason":"error"}')

    events: list[StreamEvent] = []
    async with answering(failing) as url:
        with pytest.raises(ServerRefused, match="Too much"):
            await transcribe(url, Start(), spoken(loud(1.0)), on_event=events.append)
    assert texts(events) == ["so far"]


async def test_a_connection_that_closes_early_is_named() -> None:
    async def leaving(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(READY)
        await connection.close(1012, "restart")

    async with answering(leaving) as url:
        with pytest.raises(ConnectionLost, match=r"restart \(code 1012\)"):
            await transcribed(url)


async def test_a_connection_that_breaks_is_named() -> None:
    async def breaking(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(READY)
        connection.transport.abort()

    async with answering(breaking) as url:
        with pytest.raises(ConnectionLost, match="broke before everything was answered"):
            await transcribed(url)


async def test_a_server_that_falls_silent_after_finish_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(READY)
        with contextlib.suppress(ConnectionClosed):
            while True:
                await connection.recv()

    monkeypatch.setattr("tickscribe.client.ANSWER_TIMEOUT_S", 0.1)
    async with answering(silent) as url:
        with pytest.raises(ConnectionLost, match="stopped answering"):
            await transcribed(url)


async def test_a_server_that_stops_reading_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = asyncio.Event()

    async def deaf(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(READY)
        await given_up.wait()
        connection.transport.abort()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 19)

    monkeypatch.setattr("tickscribe.client.SEND_TIMEOUT_S", 0.1)
    async with answering(deaf) as url:
        try:
            with pytest.raises(ConnectionLost, match="stopped answering"):
                await transcribed(url, audio=endless())
        finally:
            given_up.set()


async def test_a_message_of_another_protocol_is_named() -> None:
    async def foreign(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(READY)
        await connection.send('{"type":"transcript","text":"hello"}')
        await connection.wait_closed()

    async with answering(foreign) as url:
        with pytest.raises(ConnectionLost, match="unlike versions"):
            await transcribed(url)


async def test_nobody_at_the_address_says_how_to_start_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerUnreachable, match="tickscribe serve"):
        await transcribed(f"ws://127.0.0.1:{port}/v1/stream")


async def test_an_unknown_host_is_unreachable() -> None:
    with pytest.raises(ServerUnreachable, match="No server answers"):
        await transcribed("ws://no-such-host.invalid/v1/stream")


@pytest.mark.parametrize("url", ["localhost:7860", "http://localhost:7860/v1/stream", "", "ws://", "ws://host:port/"])
async def test_what_is_no_websocket_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(BadAddress, match="ws://localhost:7860/v1/stream"):
        await transcribed(url)


async def test_a_wrong_path_names_the_right_one() -> None:
    async with serving() as served:
        with pytest.raises(ServerUnreachable, match="/v1/stream"):
            await transcribed(served.url("/v2/stream"))


async def test_what_is_no_web_server_is_not_taken_for_one() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ServerUnreachable, match="not a tickscribe server"):
            await transcribed(f"ws://127.0.0.1:{port}/v1/stream")


async def test_a_secure_address_of_a_plain_server_is_named() -> None:
    async with serving() as served:
        with pytest.raises(ServerUnreachable, match="secure connection"):
            await transcribed(served.url().replace("ws://", "wss://"))
