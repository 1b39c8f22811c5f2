"""The composition root: makes the parts, joins them to one ASGI application, and runs it.

One port carries everything: `/v1/stream` and `/v1/stats/stream` (WebSockets), `/v1/stats`, `/healthz`, `/readyz`,
`/metrics`, the browser code at `/static-app` and the page at `/`. The server answers at once; the model is loaded and
warmed up in a thread meanwhile. What the parts do is in their own files; the life of the engine is in `service.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Response, WebSocket
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse

from app.service.lifecycle import EngineFactory, Service, Stage
from app.service.telemetry import StatsFeed, Telemetry, Viewer, encode
from app.web import page
from app.web.gateway import ClientGone, Gateway, send_within_timeout
from engine.config import EngineConfig
from engine.core import build_engine
from engine.errors import ConfigError
from tickscribe.messages import MAX_MESSAGE_BYTES, CloseCode, ErrorCode, ProtocolError

logger = logging.getLogger(__name__)

GRACEFUL_S = 5  # for what is still open after the sessions were drained: page loads, viewers of the statistics
_WS_MAX_BYTES = 2 * MAX_MESSAGE_BYTES  # above the protocol's own limit, so that most who exceed it are told by name
_PING_S = 20.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of one server.

    Attributes:
        engine: settings of the engine.
        host, port: where to listen.
        max_sessions: most speakers at once; one more is refused.
        allow_origins: pages of other hosts that may connect, such as "https://example.org"; "*" allows all.
        ssl_certfile, ssl_keyfile: serve https and wss.
        idle_timeout_s: a session without audio ends after this.
        drain_timeout_s: how long a stopping server flushes its sessions.
        log_level: of uvicorn.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    host: str = "localhost"
    port: int = 7860
    max_sessions: int = 64
    allow_origins: tuple[str, ...] = ()
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    idle_timeout_s: float = 60.0
    drain_timeout_s: float = 20.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}, it must lie between 0 and 65535.")
        if self.max_sessions < 1:
            raise ConfigError(f"max_sessions is {self.max_sessions}, it must be at least 1.")
        for name in ("idle_timeout_s", "drain_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be above 0.")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile belong together; give both or none.")
        for path in (self.ssl_certfile, self.ssl_keyfile):
            if path is not None and not path.is_file():
                raise ConfigError(f"There is no file {path}; give the path of a PEM file.")


def create_app(config: ServerConfig, engine_factory: EngineFactory) -> FastAPI:
    """Make the application; its `state.service` is the `Service` behind it.

    Args:
        config: settings.
        engine_factory: finds and loads the model; called once, in a thread.
    """
    telemetry = Telemetry(encoder=config.engine.encoder, max_sessions=config.max_sessions)
    feed = StatsFeed(telemetry)
    service = Service(config.engine, engine_factory, telemetry=telemetry, max_sessions=config.max_sessions)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(feed.run())
            yield
            pushing.cancel()
        await service.stop()

    # FastAPI's own pages of documentation load scripts from a CDN.
    app = FastAPI(title="tickscribe", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    _add_http_routes(app, service, telemetry)
    _add_socket_routes(app, service, telemetry, feed, config)
    app.mount(page.STATIC_ROUTE, StaticFiles(directory=page.static_folder()))
    return page.mount(app)  # last: the page at "/" takes every path that is left


def _add_http_routes(app: FastAPI, service: Service, telemetry: Telemetry) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        """Tell whether the process is worth keeping."""
        return JSONResponse({"status": service.stage}, 503 if service.stage is Stage.FAILED else 200)

    @app.get("/readyz")
    async def readyz() -> Response:
        """Tell whether the model is loaded and sessions are admitted."""
        return JSONResponse({"status": service.stage}, 200 if service.stage is Stage.READY else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/stats")
    async def stats() -> Response:
        return Response(encode(telemetry.recent()), media_type="application/json")


def _add_socket_routes(
    app: FastAPI, service: Service, telemetry: Telemetry, feed: StatsFeed, config: ServerConfig
) -> None:
    @app.websocket("/v1/stream")
    async def stream(websocket: WebSocket) -> None:
        if await _accepted(websocket, config.allow_origins):
            gateway = Gateway(websocket, admit=service.admit, telemetry=telemetry, idle_timeout_s=config.idle_timeout_s)
            await gateway.run()

    @app.websocket("/v1/stats/stream")
    async def stats_stream(websocket: WebSocket) -> None:
        if not await _accepted(websocket, config.allow_origins):
            return
        try:
            service.admit()  # before the model is loaded there is nothing to see
        except ProtocolError as fault:
            await websocket.close(CloseCode.TRY_LATER, fault.code)
            return
        with feed.viewer() as viewer:
            await _show(websocket, viewer)


async def _show(websocket: WebSocket, viewer: Viewer) -> None:
    """Send a viewer its pushes until it leaves or falls behind; what it says is ignored."""

    async def push() -> None:
        try:
            while not viewer.is_late:
                await send_within_timeout(websocket.send_text(await viewer.next_text()))
            await send_within_timeout(websocket.close(CloseCode.POLICY, ErrorCode.SLOW_CLIENT))
        except ClientGone:
            return

    async with asyncio.TaskGroup() as group:
        pushing = group.create_task(push())
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass
        pushing.cancel()


async def _accepted(websocket: WebSocket, allow_origins: Sequence[str]) -> bool:
    """Accept the socket unless a page of a foreign host opened it: browsers send its cookies and reach localhost."""
    origin = websocket.headers.get("origin")
    if is_allowed(origin, host=websocket.headers.get("host", ""), allow_origins=allow_origins):
        await websocket.accept()
        return True
    logger.warning("refused a WebSocket of a page of %r", origin)
    message = f"Pages of {origin} may not connect; start the server with --allow-origin {origin} to let them."
    await websocket.send_denial_response(JSONResponse({"code": "origin", "message": message}, 403))
    return False


def is_allowed(origin: str | None, *, host: str, allow_origins: Sequence[str]) -> bool:
    """Tell whether a WebSocket with this `Origin` may be opened: no page, our own page, or one of the list."""
    if origin is None or "*" in allow_origins or origin in allow_origins:
        return True
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(page.scheme)
        return page.hostname is not None and (page.hostname, page.port or default) == (
            here.hostname,
            here.port or default,
        )
    except ValueError:  # no number where the port should be
        return False


class Server(uvicorn.Server):
    """uvicorn's server, which lets the sessions finish before it closes their sockets."""

    def __init__(self, config: ServerConfig, engine_factory: EngineFactory) -> None:
        app = create_app(config, engine_factory)
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=None if config.ssl_keyfile is None else str(config.ssl_keyfile),
                log_level=config.log_level,
                log_config=None,  # the command line has set logging up
                access_log=False,
                timeout_graceful_shutdown=GRACEFUL_S,
                ws="websockets-sansio",
                ws_max_size=_WS_MAX_BYTES,
                ws_ping_interval=_PING_S,
                # A client that streams as fast as its audio is taken has megabytes in its socket, and its pong waits
                # behind them; the idle timeout finds those that are gone.
                ws_ping_timeout=None,
                ws_per_message_deflate=False,  # speech does not shrink, but both sides would pay for trying
            )
        )
        self.service: Service = app.state.service
        self.service.on_failure = self._leave
        self._drain_timeout_s = config.drain_timeout_s

    def _leave(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Admit nobody, flush the sessions, then close everything."""
        await self.service.drain(self._drain_timeout_s)
        await super().shutdown(sockets)


def serve(config: ServerConfig, engine_factory: EngineFactory = build_engine) -> None:
    """Run a server until SIGTERM or SIGINT.

    Raises:
        EngineError: the model could not be loaded.
        Exception: whatever else brought the engine down, so that the process exits with a fault.
    """
    server = Server(config, engine_factory)
    try:
        server.run()
    except KeyboardInterrupt:
        logger.info("interrupted")  # uvicorn repeats the signal after it has shut down
    if server.service.failure is not None:
        raise server.service.failure
