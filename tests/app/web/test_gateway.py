"""One WebSocket against a real server: the happy path, every kind of rubbish, and nobody else harmed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from app.service import sessions as sessions_module
from app.web import gateway as gateway_module
from engine.types import SessionSettings
from tests.app.serving import FINISH, START, Message, converse, hear, hear_all, hear_until, kinds, say, serving
from tests.conftest import LoadClip
from tests.fakes import ScriptedEngine, loud, pcm16, silence

PATIENCE_S = 10.0


def fault(messages: list[Message]) -> str:
    """The code of the error, provided that the conversation ended as it must: error, closed, nothing more."""
    assert kinds(messages)[-2:] == ["error", "closed"], messages
    assert kinds(messages).count("closed") == 1
    assert messages[-1]["reason"] == "error"
    assert messages[-2]["message"].endswith((".", ".'"))
    code: str = messages[-2]["code"]
    return code


async def test_speech_becomes_partials_and_a_final_and_the_end() -> None:
    async with serving() as served, served.connect() as client:
        await client.send(START)
        ready = await hear(client)
        assert (ready["type"], ready["model"], ready["sample_rate"]) == ("ready", "scripted", 16_000)
        assert ready["languages"] == ["en", "de"]
        await say(client, loud(1.0))
        assert await hear(client) == {"type": "speech_started", "utterance": 0, "start": 0.0}
        partial = await hear(client)
        assert (partial["type"], partial["committed"], partial["tentative"]) == ("partial", "", "a50")
        await say(client, silence(0.5))
        final = await hear(client)
        assert (final["text"], final["reason"], final["start"], final["end"]) == ("a50", "pause", 0.0, 1.0)
        await say(client, loud(1.0, amplitude=0.3))
        await client.send(FINISH)
        messages = await hear_all(client)
        assert kinds(messages) == ["speech_started", "partial", "final", "closed"]
        assert (messages[2]["utterance"], messages[2]["text"]) == (1, "a30")
        assert messages[-1] == {"type": "closed", "reason": "finished"}
        assert (client.close_code, client.close_reason) == (1000, "finished")


async def test_without_interim_there_are_no_partials() -> None:
    async with serving() as served, served.connect() as client:
        await client.send('{"type":"start","interim":false}')
        await say(client, loud(2.0))
        await client.send(FINISH)
        assert kinds(await hear_all(client)) == ["ready", "speech_started", "final", "closed"]


@pytest.mark.parametrize("debug", ["true", "false"])
async def test_suppressed_text_is_told_to_those_who_ask_for_it(debug: str) -> None:
    async with serving() as served, served.connect() as client:
        await client.send(f'{{"type":"start","debug":{debug}}}')
        await say(client, loud(1.0, amplitude=0.005))
        await client.send(FINISH)
        ready, *told, closed = await hear_all(client)
        assert (ready["type"], closed["type"]) == ("ready", "closed")
        assert {(m["type"], m["text"], m["reason"]) for m in told} == (
            {("debug", "you", "no_speech")} if debug == "true" else set()
        )


async def test_a_query_starts_so_that_the_socket_may_begin_with_audio() -> None:
    async with serving() as served, served.connect("/v1/stream?format=float32&sample_rate=8000&channels=2") as client:
        await client.send(np.full((8_100, 2), 0.5, "<f4").tobytes())
        await client.send(FINISH)
        messages = await hear_all(client)
        assert kinds(messages)[0] == "ready"
        assert len(messages[-2]["text"].split()) == 1


async def test_a_session_of_silence_has_nothing_to_say() -> None:
    async with serving() as served, served.connect() as client:
        assert kinds(await converse(client, silence(1.0))) == ["ready", "closed"]


async def test_eight_at_once_each_get_their_own_words() -> None:
    engine = ScriptedEngine()

    async def speaker(number: int) -> str:
        async with served.connect() as client:
            messages = await converse(client, loud(2.0, amplitude=number / 10))
            text: str = messages[-2]["text"]
            return text

    async with serving(engine) as served:
        texts = await asyncio.gather(*(speaker(number) for number in range(1, 9)))
    assert texts == [f"a{10 * number} a{10 * number}" for number in range(1, 9)]
    assert engine.n_sessions == 0


RUBBISH: list[tuple[str, list[str | bytes], str, int]] = [
    ("no JSON", ["hello"], "bad_message", 1007),
    ("text where audio should be", [START, "AAAA"], "bad_message", 1007),
    ("a deep JSON bomb", ['{"a":' + "[" * 200_000], "bad_message", 1007),
    ("a wide JSON bomb", ['{"type":"start","x":"' + "y" * 900_000 + '"}'], "bad_message", 1007),
    ("an unknown field", ['{"type":"start","translate":true}'], "bad_message", 1007),
    ("an unknown format", ['{"type":"start","format":"mp3"}'], "audio_format", 1003),
    ("sample rate 0", ['{"type":"start","sample_rate":0}'], "audio_format", 1003),
    ("nine channels", ['{"type":"start","channels":9}'], "audio_format", 1003),
    ("an odd byte count", [START, b"\0\0\0"], "audio_format", 1003),
    (
        "not a number",
        ['{"type":"start","format":"float32"}', np.array([np.nan], "<f4").tobytes()],
        "audio_format",
        1003,
    ),
    ("half a stereo frame", ['{"type":"start","channels":2}', b"\0\0", FINISH], "audio_format", 1003),
    ("audio before start", [b"\0\0"], "wrong_state", 1008),
    ("finish before start", [FINISH], "wrong_state", 1008),
    ("a second start", [START, START], "wrong_state", 1008),
    ("a pause of nothing", ['{"type":"start","pause_ms":0}'], "bad_message", 1007),
    ("an unknown task", ['{"type":"start","task":"summarise"}'], "bad_setting", 1008),
    ("an unknown language", ['{"type":"start","language":"tlh"}'], "unknown_language", 1008),
    ("a frame above 1 MiB", [START, bytes((1 << 20) + 2)], "too_big", 1009),
]


@pytest.mark.parametrize(
    ("frames", "code", "close_code"), [row[1:] for row in RUBBISH], ids=[row[0].replace(" ", "-") for row in RUBBISH]
)
async def test_rubbish_gets_a_named_error_and_a_close_code_and_harms_nobody_else(
    frames: list[str | bytes], code: str, close_code: int
) -> None:
    engine = ScriptedEngine()
    async with serving(engine) as served, served.connect() as neighbour:
        await neighbour.send(START)
        await say(neighbour, loud(1.0, amplitude=0.2))
        async with served.connect() as client:
            for frame in frames:
                await client.send(frame)
            assert fault(await hear_all(client)) == code
            assert client.close_code == close_code
        assert await served.metric(f'tickscribe_errors_total{{code="{code}"}}') == 1
        await neighbour.send(FINISH)
        assert (await hear_all(neighbour))[-2]["text"] == "a20"
    assert engine.n_sessions == 0


async def test_a_query_that_cannot_be_read_is_told_so() -> None:
    async with serving() as served, served.connect("/v1/stream?sample_rate=0") as client:
        assert fault(await hear_all(client)) == "audio_format"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("pause_ms=50", "pause_ms is 50; it must lie between 100 and 5000."),
        ("min_speech_ms=-1", "min_speech_ms is -1; it must lie between 0 and 2000."),
        ("threshold=1", "threshold is 1.0; it must lie between 0.05 and 0.95."),
        ("threshold=nan", "threshold is nan; it must lie between 0.05 and 0.95."),
        ("max_utterance_s=31", "max_utterance_s is 31.0; it must lie between 5 and 30."),
    ],
)
async def test_a_setting_out_of_range_is_told_its_range(query: str, sentence: str) -> None:
    async with serving() as served, served.connect(f"/v1/stream?{query}") as client:
        messages = await hear_all(client)
        assert fault(messages) == "bad_message"
        assert messages[-2]["message"] == sentence


async def test_a_session_has_the_settings_that_it_asked_for() -> None:
    engine = ScriptedEngine()
    wishes = "pause_ms=900&min_speech_ms=250&threshold=0.7&max_utterance_s=8.5"
    async with serving(engine) as served, served.connect(f"/v1/stream?{wishes}") as client:
        await hear(client)
        await client.send(FINISH)
        await hear_all(client)
    (opened,) = engine.opened
    assert opened == SessionSettings(pause_ms=900, min_speech_ms=250, threshold=0.7, max_utterance_s=8.5)


async def test_audio_that_can_hardly_be_what_it_says_is_named_once_and_the_session_goes_on(load_clip: LoadClip) -> None:
    floats = load_clip("utterance/jfk-inaugural.flac").astype("<f4").tobytes()
    async with serving() as served, served.connect() as client:
        await client.send(START)
        for begin in range(0, len(floats), 32_000):
            await client.send(floats[begin : begin + 32_000])
        await client.send(FINISH)
        messages = await hear_all(client)
    (warning,) = [message for message in messages if message["type"] == "warning"]
    assert warning["code"] == "audio_suspicious"
    assert "send format float32" in warning["message"]
    assert messages[-1] == {"type": "closed", "reason": "finished"}


async def test_what_was_heard_before_a_fault_is_still_answered() -> None:
    async with serving() as served, served.connect() as client:
        await client.send(START)
        await say(client, loud(1.0))
        await client.send(b"\0")
        messages = await hear_all(client)
        assert fault(messages) == "audio_format"
        assert (messages[-3]["type"], messages[-3]["text"]) == ("final", "a50")


async def test_anything_after_finish_is_out_of_turn_but_costs_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "SILENT_ENGINE_S", 0.2)
    async with (
        serving(ScriptedEngine(is_stuck=True)) as served,
        served.connect() as client,
    ):  # so that it is not closed yet
        await client.send(START)
        await client.send(FINISH)
        await client.send(pcm16(loud(0.1)))
        assert fault(await hear_all(client)) == "wrong_state"
        assert client.close_code == 1008


async def test_a_frame_of_10_mb_is_closed_cleanly_and_harms_nobody_else() -> None:
    engine = ScriptedEngine()
    async with serving(engine) as served, served.connect() as neighbour:
        await neighbour.send(START)
        async with served.connect() as client:
            await client.send(START)
            await hear(client)
            with pytest.raises(ConnectionClosed):
                await client.send(bytes(10_000_000))
                await hear_until(client, "closed")
        assert await asyncio.to_thread(engine.closed.get, timeout=PATIENCE_S)
        await say(neighbour, loud(1.0))
        await neighbour.send(FINISH)
        assert (await hear_all(neighbour))[-1]["reason"] == "finished"


async def test_a_client_that_vanishes_mid_word_leaves_nothing_behind() -> None:
    engine = ScriptedEngine()
    async with serving(engine, max_sessions=1) as served:
        async with served.connect() as client:
            await client.send(START)
            await say(client, loud(1.0))
            await hear_until(client, "partial")
            client.transport.abort()
        assert await asyncio.to_thread(engine.closed.get, timeout=PATIENCE_S)
        assert engine.n_sessions == 0
        async with served.connect() as client:
            assert (await converse(client, loud(1.0)))[-1]["reason"] == "finished", "the only place is free again"
        assert await served.metric('tickscribe_sessions_total{outcome="abandoned"}') == 1


async def test_a_client_that_closes_without_finish_is_abandoned() -> None:
    engine = ScriptedEngine()
    async with serving(engine) as served:
        async with served.connect() as client:
            await client.send(START)
            await hear(client)
        assert await asyncio.to_thread(engine.closed.get, timeout=PATIENCE_S)
        assert (await served.stats())["sessions"] == 0


async def test_one_too_many_is_refused_by_name() -> None:
    async with serving(max_sessions=1) as served, served.connect() as first:
        await first.send(START)
        await hear(first)
        async with served.connect() as second:
            await second.send(START)
            assert fault(await hear_all(second)) == "server_full"
            assert second.close_code == 1013
        await first.send(FINISH)
        assert (await hear_all(first))[-1]["reason"] == "finished"


@pytest.mark.parametrize("frames", [[], [START], [START, b""]], ids=["no-start", "no-audio", "empty-audio"])
async def test_a_session_without_audio_ends_idle(frames: list[str | bytes]) -> None:
    async with serving(idle_timeout_s=0.2) as served, served.connect() as client:
        for frame in frames:
            await client.send(frame)
        assert fault(await hear_all(client)) == "idle_timeout"
        assert client.close_code == 1008


async def test_a_client_that_is_faster_than_the_engine_is_held_back_not_refused() -> None:
    """Three minutes of audio at once, above what may be unanswered, all of it heard."""
    async with serving() as served, served.connect() as client:
        await client.send(START)
        for _ in range(18):
            await client.send(pcm16(loud(10.0)))
        await client.send(FINISH)
        messages = await hear_all(client)
        assert len(messages[-2]["text"].split()) == 180
        assert await served.metric("tickscribe_audio_received_seconds_total") == 180


async def test_a_backlog_that_stands_still_ends_as_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "PUSH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(sessions_module, "SILENT_ENGINE_S", 0.1)
    async with serving(ScriptedEngine(is_stuck=True)) as served, served.connect() as client:
        await client.send(START)
        for _ in range(13):
            await client.send(pcm16(loud(10.0)))
        assert fault(await hear_all(client)) == "overloaded"
        assert client.close_code == 1013


async def test_a_client_that_never_reads_is_let_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(gateway_module, "SEND_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sessions_module, "OUTBOX_EVENTS", 1_000_000)  # that is the other way to be too slow
    engine = ScriptedEngine()
    async with serving(engine, send_buffer_bytes=4_096) as served:
        client = await served.connect(ping_interval=None)
        await client.send(START)
        client.transport.pause_reading()
        talking = asyncio.create_task(_say_many_words(client, 5_000))  # each is a final, which is never dropped
        assert await asyncio.to_thread(engine.closed.get, timeout=3 * PATIENCE_S)
        talking.cancel()
        client.transport.abort()
        assert await served.metric('tickscribe_sessions_total{outcome="abandoned"}') == 1
    assert "has not read" in caplog.text


async def _say_many_words(client: ClientConnection, n_words: int) -> None:
    word, pause = pcm16(loud(0.1)), pcm16(silence(0.5))
    for _ in range(n_words):
        await client.send(word)
        await client.send(pause)
