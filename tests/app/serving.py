"""A real server on a free port for one test, and the few words a test says to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from app.service.lifecycle import EngineFactory
from app.web.server import Server, ServerConfig
from tests.fakes import ScriptedEngine, pcm16

START = '{"type":"start"}'
FINISH = '{"type":"finish"}'
PATIENCE_S = 10.0  # for anything to happen that should happen at once

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    server: Server
    port: int
    task: asyncio.Task[None]
    http: httpx.AsyncClient

    def url(self, path: str = "/v1/stream") -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def connect(self, path: str = "/v1/stream", **options: Any) -> connect:
        """Open a WebSocket without the client's own limits and proxies."""
        return connect(self.url(path), compression=None, proxy=None, max_size=None, **options)

    async def until_ready(self) -> None:
        """Wait until the model is loaded."""
        async with asyncio.timeout(PATIENCE_S):
            await self.server.service.until_loaded()

    async def stats(self) -> Message:
        """What /v1/stats says."""
        stats: Message = (await self.http.get("/v1/stats")).json()
        return stats

    async def metric(self, line: str) -> float:
        """The value of a line of /metrics, named with its labels; 0 if there is none."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(found.rpartition(" ")[2]) for found in lines if found.startswith(line + " ")), 0.0)


@asynccontextmanager
async def serving(
    engine: ScriptedEngine | None = None,
    *,
    factory: EngineFactory | None = None,
    send_buffer_bytes: int | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Run a server around `engine`, or around what `factory` gives without waiting for it; stop it afterwards.

    Args:
        send_buffer_bytes: of each socket, for a test in which the client does not read.
        settings: fields of ServerConfig.
    """
    config = replace(ServerConfig(drain_timeout_s=2.0), **settings)
    scripted = engine or ScriptedEngine()
    server = Server(config, factory or (lambda _: scripted))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        port = listener.getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            task = asyncio.create_task(server.serve(sockets=[listener]))
            served = Served(server, port, task, http)
            try:
                if factory is None:
                    await served.until_ready()
                yield served
            finally:
                server.should_exit = True
                await task


async def hear(client: ClientConnection) -> Message:
    """The next message."""
    async with asyncio.timeout(PATIENCE_S):
        message: Message = msgspec.json.decode(await client.recv())
    return message


async def hear_until(client: ClientConnection, kind: str) -> Message:
    """Skip messages up to the first of a kind."""
    while (message := await hear(client))["type"] != kind:
        assert message["type"] != "closed", f"closed before {kind}"
    return message


async def hear_all(client: ClientConnection) -> list[Message]:
    """Every message until the socket is closed."""
    messages: list[Message] = []
    try:
        while True:
            messages.append(await hear(client))
    except ConnectionClosed:
        return messages


def kinds(messages: list[Message]) -> list[str]:
    """Their types, in order."""
    return [message["type"] for message in messages]


async def say(client: ClientConnection, samples: Any) -> None:
    """Send audio in chunks of 100 ms, as 16 kHz pcm16."""
    for begin in range(0, len(samples), 1_600):
        await client.send(pcm16(samples[begin : begin + 1_600]))


async def converse(client: ClientConnection, samples: Any) -> list[Message]:
    """Start, say `samples`, finish, and hear everything."""
    await client.send(START)
    await say(client, samples)
    await client.send(FINISH)
    return await hear_all(client)
