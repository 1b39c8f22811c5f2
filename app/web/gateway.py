"""One WebSocket of `/v1/stream`: a receive loop and a send loop.

The receive loop takes frames from the socket through `Connection` and `AudioDecoder` to the bridge, the send loop takes
events from the bridge through `Connection` to the socket. Both run on the event loop in one task group; the send
loop has the last word. Knows no engine thread and no HTTP routes.

However a session ends, it goes the same way: something closes it in the bridge, what was heard before is sent, then
`error` if there is a fault, `closed`, and the WebSocket close code.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from app.audio.decoder import AudioDecoder
from app.audio.plausibility import Plausibility
from app.dialects.native import Connection, fault_of
from app.dialects.settings import check_settings
from app.service.sessions import Bridge, Session
from app.service.telemetry import Latency, Outcome, Telemetry
from engine.core import ModelInfo
from engine.types import SAMPLE_RATE, CloseReason, Final, Partial, Progress, Samples, SessionClosed, Suppressed
from tickscribe.messages import (
    CLOSE_CODES,
    Audio,
    AudioFormat,
    CloseCode,
    EndOfSession,
    ErrorCode,
    Finish,
    ProtocolError,
    Start,
    WarningCode,
    WarningMessage,
)

logger = logging.getLogger(__name__)

SEND_TIMEOUT_S = 20.0  # that one message may wait for a client that does not read


class ClientGone(Exception):
    """The other side has closed the socket or vanished."""


class Gateway:
    """One conversation over one WebSocket; call `run` once, after the socket was accepted.

    Args:
        websocket: accepted, nothing received yet.
        admit: gives the bridge and the model's description, or raises ProtocolError while nobody is admitted.
        idle_timeout_s: without audio (or without a start).
    """

    def __init__(
        self,
        websocket: WebSocket,
        *,
        admit: Callable[[], tuple[Bridge, ModelInfo]],
        telemetry: Telemetry,
        idle_timeout_s: float,
    ) -> None:
        self._websocket = websocket
        self._admit = admit
        self._telemetry = telemetry
        self._idle_timeout_s = idle_timeout_s

    async def run(self) -> None:
        """Serve the client until one side ends the conversation; only cancellation gets out."""
        # Until a model is known, a conversation can only be refused.
        connection = Connection(session_id="", model="", languages=())
        try:
            bridge, info = self._admit()
            connection = Connection(session_id=secrets.token_hex(8), model=info.name, languages=info.languages)
            await self._converse(bridge, info, connection)
        except ProtocolError as fault:  # before there was a session
            await self._part(connection, fault)
        except ClientGone:
            return
        except Exception:  # the connection handler's door: nobody else's session may suffer
            logger.exception("session %s failed", connection.session_id)
            await self._part(connection, ProtocolError(ErrorCode.INTERNAL, "The server failed; connect again."))

    async def _converse(self, bridge: Bridge, info: ModelInfo, connection: Connection) -> None:
        start = await self._start(connection)
        check_settings(start, info)
        audio_format = AudioFormat(start.format)
        intake = AudioDecoder(audio_format, sample_rate=start.sample_rate, channels=start.channels)
        plausibility = Plausibility(audio_format, sample_rate=start.sample_rate, channels=start.channels)
        with bridge.session(connection.session_id, start.settings) as session:
            logger.info("session %s opened: %s", session.id, start)
            self._telemetry.session_opened()
            outcome = Outcome.ERROR
            try:
                outcome = await self._stream(session, connection, intake, plausibility)
            finally:
                self._telemetry.session_ended(outcome)
                logger.info("session %s ended: %s", session.id, outcome)

    async def _start(self, connection: Connection) -> Start:
        query = self._websocket.query_params.multi_items()
        if query:
            return connection.start(query)
        event = connection.receive(await self._receive(self._idle_deadline()))
        assert isinstance(event, Start), "the protocol lets nothing else be first"
        return event

    async def _stream(
        self, session: Session, connection: Connection, intake: AudioDecoder, plausibility: Plausibility
    ) -> Outcome:
        async with asyncio.TaskGroup() as group:
            receiver = group.create_task(self._receive_loop(session, connection, intake, plausibility))
            outcome = await self._send_loop(session, connection)
            receiver.cancel()
        return outcome

    # ------------------------------------------------------------------------------------------- inward

    async def _receive_loop(
        self, session: Session, connection: Connection, intake: AudioDecoder, plausibility: Plausibility
    ) -> None:
        try:
            try:
                await self._take_audio(session, connection, intake, plausibility)
                await self._take_nothing_more(connection)
            except ProtocolError as fault:
                session.fail(fault)
                while True:  # the rest is not ours to judge, but a client that leaves meanwhile must be noticed
                    await self._receive(None)
        except ClientGone:
            session.abandon()

    async def _take_audio(
        self, session: Session, connection: Connection, intake: AudioDecoder, plausibility: Plausibility
    ) -> None:
        """Pass audio on until the client says finish."""
        deadline = self._idle_deadline()
        while True:
            match connection.receive(await self._receive(deadline)):
                case Audio(data):
                    samples = intake.accept(data)
                    self._telemetry.audio_received(len(samples) / SAMPLE_RATE)
                    if not plausibility.is_done:
                        self._question(session, plausibility, data, samples)
                    if len(samples):
                        await session.push(samples)
                    if data:  # an empty frame would hold a place for ever
                        deadline = self._idle_deadline()
                case Finish():
                    samples = intake.finish()
                    if len(samples):
                        await session.push(samples)
                    session.finish()
                    return
                case Start():
                    raise AssertionError("the protocol lets no second start pass")

    def _question(self, session: Session, plausibility: Plausibility, data: bytes, samples: Samples) -> None:
        """Tell the client if its audio can hardly be what it says it is."""
        doubt = plausibility.listen(data, samples, now=asyncio.get_running_loop().time())
        if doubt is not None:
            logger.info("session %s: %s", session.id, doubt)
            session.warn(WarningMessage(code=WarningCode.AUDIO_SUSPICIOUS, message=doubt))

    async def _take_nothing_more(self, connection: Connection) -> None:
        while True:
            connection.receive(await self._receive(None))  # raises: everything after finish is out of turn

    async def _receive(self, deadline: float | None) -> str | bytes:
        """Wait for a frame until `deadline` (loop time; None leaves the wait to the send loop's end)."""
        try:
            async with asyncio.timeout_at(deadline):
                message = await self._websocket.receive()
        except TimeoutError as error:
            raise ProtocolError(
                ErrorCode.IDLE_TIMEOUT,
                f"No audio came for {self._idle_timeout_s:g} s; say finish when you are done, connect again to go on.",
            ) from error
        if message["type"] == "websocket.disconnect":
            raise ClientGone("the client has closed")
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text

    def _idle_deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._idle_timeout_s

    # ------------------------------------------------------------------------------------------- outward

    async def _send_loop(self, session: Session, connection: Connection) -> Outcome:
        """Send `ready`, every event, and the farewell."""
        try:
            await self._send(connection.ready())
            while not isinstance(event := await session.next_event(), SessionClosed):
                assert not isinstance(event, Progress), "the bridge keeps these"
                if isinstance(event, Suppressed) and not connection.wants_debug:
                    continue
                await self._send(connection.send(event))
                self._measure(session, event)
        except ClientGone as gone:
            logger.info("session %s: %s", session.id, gone)
            session.abandon()
            return Outcome.ABANDONED
        fault = session.fault or fault_of(event)
        if fault is None and event.reason is CloseReason.ABANDONED:
            return Outcome.ABANDONED
        await self._part(connection, fault)
        return Outcome.ERROR if fault else Outcome.FINISHED

    def _measure(self, session: Session, event: object) -> None:
        if not isinstance(event, Partial | Final):
            return
        latency_s = session.latency_s(event.heard)
        if latency_s is not None:
            self._telemetry.sent(Latency.PARTIAL if isinstance(event, Partial) else Latency.FINAL, latency_s)

    async def _part(self, connection: Connection, fault: ProtocolError | None) -> None:
        """Say why, say closed, close; a client that left meanwhile is no matter."""
        if fault is not None:
            self._telemetry.failed(fault.code)
            logger.info("session %s: %s: %s", connection.session_id, fault.code, fault.message)
        try:
            if fault is None:
                await self._send(connection.close(EndOfSession.FINISHED))
                await self._close(CloseCode.NORMAL, EndOfSession.FINISHED)
            else:
                await self._send(connection.error(fault))
                await self._send(connection.close(EndOfSession.ERROR))
                await self._close(CLOSE_CODES[fault.code], fault.code)
        except ClientGone:
            return

    async def _send(self, text: str) -> None:
        await send_within_timeout(self._websocket.send_text(text))

    async def _close(self, code: int, reason: str) -> None:
        await send_within_timeout(self._websocket.close(code, reason))


async def send_within_timeout(sending: Coroutine[Any, Any, None]) -> None:
    """Await a send of a WebSocket.

    Raises:
        ClientGone: the socket is closed, or its client has not read for SEND_TIMEOUT_S.
    """
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await sending
    except TimeoutError as error:
        raise ClientGone(f"the client has not read for {SEND_TIMEOUT_S:g} s") from error
    except (WebSocketDisconnect, RuntimeError) as error:
        # RuntimeError is how uvicorn says that it has begun to close the socket by itself.
        raise ClientGone("the client has closed") from error
