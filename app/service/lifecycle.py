"""The life of the engine inside a server: loading, ready, stopping, or failed.

Made by `server.py`, asked by its routes, and the only owner of the `Bridge`. Loading runs in a thread of its own; all
else runs on the event loop. Knows no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from app.service.sessions import Bridge
from app.service.telemetry import Telemetry
from engine.config import EngineConfig
from engine.core import ModelInfo
from engine.worker import Core
from tickscribe.messages import ErrorCode, ProtocolError

logger = logging.getLogger(__name__)


class LoadedCore(Core, Protocol):
    """An engine as its factory gives it: `engine.Engine`, or a script in tests."""

    @property
    def info(self) -> ModelInfo:
        """What is loaded."""
        ...

    def warm_up(self) -> None:
        """Make the first speaker's wait no longer than the second's."""
        ...


EngineFactory = Callable[[EngineConfig], LoadedCore]


class Stage(StrEnum):
    """Where the service stands."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


_REFUSALS = {
    Stage.LOADING: (ErrorCode.LOADING, "The model is still being loaded; try again in a few seconds."),
    Stage.STOPPING: (ErrorCode.SHUTTING_DOWN, "The server is shutting down; connect again in a moment."),
    Stage.FAILED: (ErrorCode.INTERNAL, "The transcription engine has failed; the server has to be started again."),
}


class Service:
    """`start`, then `admit` per client, then `drain` and `stop`, all on the event loop.

    Attributes:
        stage: where it stands.
        failure: what brought the engine down, None while nothing has.
        on_failure: called once when that happens, after every session was closed with the reason.
    """

    def __init__(
        self, config: EngineConfig, engine_factory: EngineFactory, *, telemetry: Telemetry, max_sessions: int
    ) -> None:
        self.stage = Stage.LOADING
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self._config = config
        self._engine_factory = engine_factory
        self._telemetry = telemetry
        self._max_sessions = max_sessions
        self._bridge: Bridge | None = None
        self._info: ModelInfo | None = None
        self._settled = asyncio.Event()  # loaded or failed

    def start(self) -> None:
        """Begin to load the model."""
        loop = asyncio.get_running_loop()
        # A daemon, unlike the threads of asyncio.to_thread: a server that is told to stop does not wait for a download.
        threading.Thread(target=self._load, args=(loop,), name="loader", daemon=True).start()

    async def until_loaded(self) -> None:
        """Wait until the engine is there, or has failed."""
        await self._settled.wait()

    def admit(self) -> tuple[Bridge, ModelInfo]:
        """Give what a session needs.

        Raises:
            ProtocolError: (loading, shutting_down, internal) there are no sessions now.
        """
        if self.stage is not Stage.READY:
            raise ProtocolError(*_REFUSALS[self.stage])
        assert self._bridge is not None and self._info is not None, "ready without an engine"
        return self._bridge, self._info

    async def drain(self, timeout_s: float) -> None:
        """Admit nobody any more and let the sessions finish."""
        if self.stage is not Stage.FAILED:
            self.stage = Stage.STOPPING
        if self._bridge is not None:
            await self._bridge.drain(timeout_s)

    async def stop(self) -> None:
        """Stop the engine; sessions that are still open are closed with the reason."""
        if self.stage is not Stage.FAILED:
            self.stage = Stage.STOPPING
        if self._bridge is not None:
            await self._bridge.stop()

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits for the model
            try:
                engine = self._engine_factory(self._config)
                engine.warm_up()
            except Exception as fault:  # a thread's last door; `serve` raises it again
                loop.call_soon_threadsafe(self._failed, fault)
            else:
                loop.call_soon_threadsafe(self._loaded, engine)

    def _loaded(self, engine: LoadedCore) -> None:
        if self.stage is not Stage.LOADING:
            return
        self._info = engine.info
        self._telemetry.model_loaded(engine.info)
        self._bridge = Bridge(
            engine,
            max_sessions=self._max_sessions,
            gather_ms=self._config.gather_ms,
            on_tick=self._telemetry.ticked,
            on_crash=self._failed,
        )
        self._bridge.start()
        self.stage = Stage.READY
        self._settled.set()
        logger.info("ready: %s", engine.info)

    def _failed(self, fault: BaseException) -> None:
        self.stage = Stage.FAILED
        self.failure = fault
        self._settled.set()
        self.on_failure()
