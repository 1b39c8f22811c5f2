"""The server as a whole: health, statistics, who may connect, and how it starts, stops and fails."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.web.server import ServerConfig, is_allowed
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelNotFound
from tests.app.serving import (
    FINISH,
    PATIENCE_S,
    START,
    converse,
    hear,
    hear_all,
    hear_until,
    kinds,
    say,
    serving,
)
from tests.fakes import ScriptedEngine, loud

ROOT = Path(__file__).parents[3]


class SlowFactory:
    """Loads its engine when told."""

    def __init__(self) -> None:
        self.may_load = threading.Event()
        self.engine = ScriptedEngine()

    def __call__(self, config: EngineConfig) -> ScriptedEngine:
        assert self.may_load.wait(PATIENCE_S)
        return self.engine


def fail_to_load(config: EngineConfig) -> ScriptedEngine:
    """A factory without a model."""
    raise ModelNotFound(f"There is no {config.model}.")


# ----------------------------------------------------------------------------------------------- health


async def test_the_server_answers_while_the_model_is_loaded() -> None:
    factory = SlowFactory()
    async with serving(factory=factory) as served:
        assert (await served.http.get("/healthz")).status_code == 200
        ready = await served.http.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
        assert (await served.stats())["model"] == ""
        async with served.connect() as client:
            messages = await hear_all(client)
            assert (kinds(messages), messages[0]["code"]) == (["error", "closed"], "loading")
            assert client.close_code == 1013
        async with served.connect("/v1/stats/stream") as viewer:
            with pytest.raises(ConnectionClosed):
                await viewer.recv()
            assert (viewer.close_code, viewer.close_reason) == (1013, "loading")

        factory.may_load.set()
        await served.until_ready()
        ready = await served.http.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        assert factory.engine.is_warm
        async with served.connect() as client:
            assert (await converse(client, loud(1.0)))[-1]["reason"] == "finished"


async def test_a_model_that_cannot_be_loaded_stops_the_server_with_the_reason() -> None:
    async with serving(factory=fail_to_load) as served:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.shield(served.task)
        assert isinstance(served.server.service.failure, ModelNotFound)


async def test_a_crash_of_the_engine_closes_every_session_with_a_reason_and_stops_the_server() -> None:
    async with serving(ScriptedEngine(crash_above=0.8)) as served:
        async with served.connect() as bystander, served.connect() as culprit:
            for client in (bystander, culprit):
                await client.send(START)
                await hear(client)
            await say(bystander, loud(1.0))
            await hear_until(bystander, "partial")
            await say(culprit, loud(0.1, amplitude=0.9))
            for client in (bystander, culprit):
                messages = await hear_all(client)
                assert kinds(messages)[-2:] == ["error", "closed"]
                assert kinds(messages).count("closed") == 1
                assert messages[-2]["code"] == "internal"
                assert client.close_code == 1011
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.shield(served.task)
        assert str(served.server.service.failure) == "scripted crash"


async def test_a_failed_engine_is_unhealthy_and_admits_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(ScriptedEngine(crash_above=0.8)) as served:
        failed = asyncio.Event()
        served.server.service.on_failure = failed.set  # so that the server stays to be asked
        async with served.connect() as culprit:
            await culprit.send(START)
            await say(culprit, loud(0.1, amplitude=0.9))
            await hear_all(culprit)
        async with asyncio.timeout(PATIENCE_S):
            await failed.wait()
        health = await served.http.get("/healthz")
        assert (health.status_code, health.json()) == (503, {"status": "failed"})
        assert (await served.http.get("/readyz")).status_code == 503
        async with served.connect() as client:
            assert (await hear_all(client))[0]["code"] == "internal"


# ----------------------------------------------------------------------------------------------- stopping


async def test_a_stopping_server_answers_what_it_heard_then_says_that_it_stops() -> None:
    async with serving() as served, served.connect() as client:
        await client.send(START)
        await say(client, loud(1.0))
        await hear_until(client, "partial")
        served.server.should_exit = True
        messages = await hear_all(client)
        assert kinds(messages) == ["final", "error", "closed"]
        assert messages[0]["text"] == "a50"
        assert messages[1]["code"] == "shutting_down"
        assert client.close_code == 1012


async def test_a_stopping_server_admits_nobody() -> None:
    async with serving(ScriptedEngine(is_stuck=True)) as served, served.connect() as client:
        await client.send(START)
        await hear(client)
        draining = asyncio.create_task(served.server.service.drain(PATIENCE_S))
        await asyncio.sleep(0)
        assert (await served.http.get("/readyz")).json() == {"status": "stopping"}
        async with served.connect() as late:
            assert (await hear_all(late))[0]["code"] == "shutting_down"
            assert late.close_code == 1012
        await client.close()
        await draining


_PROCESS = """
import logging
from app.web.server import ServerConfig, serve
from tests.fakes import ScriptedEngine
logging.basicConfig(level="INFO")
serve(ServerConfig(host="127.0.0.1", port=0), lambda config: ScriptedEngine(crash_above=0.8))
"""


async def started_process() -> tuple[asyncio.subprocess.Process, str]:
    """A server in a process of its own, and the URL of its socket."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROCESS, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    url = ""
    is_ready = False
    async with asyncio.timeout(60):
        while not (url and is_ready):
            line = (await process.stderr.readline()).decode()
            assert line, "the server ended before it was ready"
            if "running on http" in line:
                url = line.partition("on http")[2].split()[0]
            is_ready = is_ready or "ready: " in line
    return process, f"ws{url}/v1/stream"


async def left(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """The exit code and the rest of what it logged."""
    async with asyncio.timeout(30):
        _, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stderr.decode()


async def test_a_crashed_engine_makes_the_process_exit_with_a_fault() -> None:
    from websockets.asyncio.client import connect

    process, url = await started_process()
    async with connect(url, proxy=None) as client:
        await client.send(START)
        await say(client, loud(0.1, amplitude=0.9))
        assert kinds(await hear_all(client)) == ["ready", "error", "closed"]
    code, log = await left(process)
    assert code == 1
    assert "RuntimeError: scripted crash" in log


async def test_sigterm_lets_a_speaker_have_the_last_words() -> None:
    from websockets.asyncio.client import connect

    process, url = await started_process()
    async with connect(url, proxy=None) as client:
        await client.send(START)
        await say(client, loud(1.0))
        await hear_until(client, "partial")
        process.send_signal(signal.SIGTERM)
        messages = await hear_all(client)
        assert kinds(messages) == ["final", "error", "closed"]
    code, log = await left(process)
    assert code == -signal.SIGTERM, "uvicorn ends by the signal it was sent"
    assert "Traceback" not in log


# ----------------------------------------------------------------------------------------------- statistics


async def test_metrics_and_statistics_tell_what_happened() -> None:
    async with serving(max_sessions=5) as served:
        async with served.connect() as client:
            await client.send(START)
            await say(client, loud(2.0))
            await hear_until(client, "partial")
            assert (await served.stats())["sessions"] == 1
            assert await served.metric("tickscribe_sessions_active") == 1
            await client.send(FINISH)
            await hear_all(client)
        stats = await served.stats()
        assert (stats["type"], stats["model"], stats["encoder"]) == ("stats", "scripted", "batched")
        assert (stats["sessions"], stats["max_sessions"]) == (0, 5)
        assert set(stats["ticks"][0]) == {
            "tick", "at", "encoder_batch", "encoder_ms", "tick_ms", "decode_rows", "tokens"
        }  # fmt: skip
        assert stats["latency"]["partial"]["n"] >= 1
        assert stats["latency"]["final"]["n"] == 1
        assert 0 <= stats["latency"]["final"]["p50_ms"] <= stats["latency"]["final"]["p95_ms"]
        for line, value in {
            'tickscribe_sessions_total{outcome="finished"}': 1,
            "tickscribe_sessions_active": 0,
            "tickscribe_audio_received_seconds_total": 2,
            "tickscribe_final_latency_seconds_count": 1,
            'tickscribe_model_info{device="cpu",dtype="float32",name="scripted"}': 1,
        }.items():
            assert await served.metric(line) == pytest.approx(value), line
        assert await served.metric("tickscribe_encoder_batch_size_count") == len(stats["ticks"])


async def test_viewers_get_the_history_and_then_what_is_new() -> None:
    async with serving() as served:
        async with served.connect() as client:
            await converse(client, loud(1.0))
        before = [tick["tick"] for tick in (await served.stats())["ticks"]]
        async with served.connect("/v1/stats/stream") as viewer, served.connect() as client:
            assert [tick["tick"] for tick in (await hear(viewer))["ticks"]] == before
            await converse(client, loud(1.0))
            fresh: list[int] = []
            while not fresh:
                fresh = [tick["tick"] for tick in (await hear(viewer))["ticks"]]
            assert min(fresh) > max(before)


async def test_a_viewer_that_leaves_is_forgotten_and_the_next_is_served() -> None:
    async with serving() as served:
        for _ in range(2):
            async with served.connect("/v1/stats/stream") as viewer:
                await viewer.send("what a viewer says is ignored")
                for _ in range(2):
                    assert (await hear(viewer))["type"] == "stats"


async def test_a_viewer_that_does_not_read_does_not_stop_the_server() -> None:
    async with serving() as served, served.connect("/v1/stats/stream") as viewer:
        await hear(viewer)
        served.server.should_exit = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.shield(served.task)


# ----------------------------------------------------------------------------------------------- one port, one page


async def test_one_port_carries_the_page_and_its_files() -> None:
    async with serving() as served:
        page = await served.http.get("/")
        assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        script = await served.http.get("/static-app/app.js")
        assert script.status_code == 200 and "javascript" in script.headers["content-type"]
        assert "swagger" not in (await served.http.get("/docs")).text, "its scripts come from a CDN"


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/stats/stream"])
async def test_a_page_of_another_host_may_not_connect_unless_it_is_on_the_list(path: str) -> None:
    async with serving(allow_origins=("https://friend.example",)) as served:
        with pytest.raises(InvalidStatus) as caught:
            async with served.connect(path, origin="https://evil.example"):
                pass
        assert caught.value.response.status_code == 403
        assert b"--allow-origin https://evil.example" in caught.value.response.body
        for origin in (None, f"http://127.0.0.1:{served.port}", "https://friend.example"):
            async with served.connect(path, origin=origin):
                pass


@pytest.mark.parametrize(
    ("origin", "host", "allow_origins", "allowed"),
    [
        (None, "localhost:7860", (), True),
        ("http://localhost:7860", "localhost:7860", (), True),
        ("http://LOCALHOST:7860", "localhost:7860", (), True),
        ("https://asr.example", "asr.example", (), True),
        ("https://asr.example", "asr.example:443", (), True),
        ("http://localhost:3000", "localhost:7860", (), False),
        ("http://evil.example", "localhost:7860", (), False),
        ("http://localhost:7860.evil.example", "localhost:7860", (), False),
        ("null", "localhost:7860", (), False),
        ("", "localhost:7860", (), False),
        ("http://localhost:port", "localhost:7860", (), False),
        ("http://evil.example", "localhost:7860", ("*",), True),
        ("http://friend.example", "localhost:7860", ("http://friend.example",), True),
    ],
)
def test_only_our_own_page_and_the_list_are_allowed(
    origin: str | None, host: str, allow_origins: tuple[str, ...], allowed: bool
) -> None:
    assert is_allowed(origin, host=host, allow_origins=allow_origins) is allowed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"port": 70_000}, "port is 70000"),
        ({"max_sessions": 0}, "at least 1"),
        ({"idle_timeout_s": 0.0}, "idle_timeout_s"),
        ({"ssl_certfile": Path("cert.pem")}, "belong together"),
        ({"ssl_certfile": Path("no.pem"), "ssl_keyfile": Path("no.key")}, "no file no.pem"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig(**settings)
