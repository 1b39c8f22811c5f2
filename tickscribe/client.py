"""Async client of the native protocol over a real WebSocket: what `tickscribe file` and `tickscribe mic` speak.

Stands at the far end of the socket from `gateway.py` and shares the messages of `messages.py` with it. Whatever can go
wrong between the two arrives as a `ClientError` whose message tells the user what to do. Runs on any event loop; one
`Session` belongs to one task for sending and one for reading.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidStatus, InvalidURI

from engine.types import Samples
from tickscribe.messages import (
    CLOSE_CODES,
    ClosedMessage,
    DebugMessage,
    EndOfSession,
    ErrorCode,
    ErrorMessage,
    FinalMessage,
    Finish,
    PartialMessage,
    ProtocolError,
    ReadyMessage,
    SpeechStartedMessage,
    Start,
    WarningMessage,
    decode_server_message,
    encode,
)

_EXAMPLE_URL = "ws://localhost:7860/v1/stream"
CONNECT_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 90.0  # a server that is behind makes its clients wait, but gives up on its own before this
CLOSE_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 120.0  # between two messages once everything is sent: as long as the audio a server may hold back
_TRY_LATER = CLOSE_CODES[ErrorCode.SERVER_FULL]

StreamEvent = SpeechStartedMessage | PartialMessage | FinalMessage | DebugMessage | WarningMessage


class ClientError(Exception):
    """A session with the server failed; the message is a sentence for the user."""


class BadAddress(ClientError):
    """The URL is no WebSocket address."""


class ServerUnreachable(ClientError):
    """Nobody answers at the URL, or somebody else does."""


class ServerRefused(ClientError):
    """The server ended the session by an error message; `code` says which."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ServerFull(ServerRefused):
    """The server has no room for another session."""


class ConnectionLost(ClientError):
    """The connection ended before everything was answered."""


class Session:
    """One open session: `send` audio any number of times, `finish` once, read `events` to their end meanwhile.

    Attributes:
        ready: the server's greeting: session id, model, languages.
    """

    def __init__(self, socket: ClientConnection, ready: ReadyMessage) -> None:
        self.ready = ready
        self._socket = socket
        self._finished = False
        self._wait: asyncio.Timeout | None = None  # of the read in progress

    async def send(self, audio: bytes) -> None:
        """Send samples in the format that `Start` announced; waits while the server is not taking more.

        Raises:
            ConnectionLost: the connection is gone; `events` says why.
        """
        await self._send(audio)

    async def finish(self) -> None:
        """Say that no more audio comes; the server answers what it holds and closes.

        Raises:
            ConnectionLost: the connection is gone; `events` says why.
        """
        self._finished = True
        await self._send(encode(Finish()))
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S)

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield what the server hears, until it has answered everything.

        Raises:
            ServerRefused: the server ended the session by an error; what it still had to say was yielded before.
            ConnectionLost: the connection broke, or the server fell silent.
        """
        refusal: ErrorMessage | None = None
        while True:
            match await self._receive():
                case ErrorMessage() as refusal:
                    continue
                case ClosedMessage(reason=EndOfSession.FINISHED):
                    return
                case ClosedMessage():
                    raise _refused(refusal)
                case ReadyMessage():
                    raise ConnectionLost("The server greeted twice; it does not speak this version of the protocol.")
                case event:
                    yield event

    async def _send(self, message: str | bytes) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._socket.send(message)
        except TimeoutError as error:
            if self._wait is not None:
                self._wait.reschedule(asyncio.get_running_loop().time())  # the reader has nothing to wait for either
            raise self._given_up() from error
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def _receive(self) -> StreamEvent | ReadyMessage | ErrorMessage | ClosedMessage:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S if self._finished else None) as self._wait:
                text = await self._socket.recv()
            return decode_server_message(text)
        except TimeoutError as error:
            raise self._given_up() from error
        except ConnectionClosed as error:
            raise _lost(error) from error
        except ProtocolError as error:
            raise ConnectionLost(f"{error.message} Client and server may be of unlike versions.") from error
        finally:
            self._wait = None

    def _given_up(self) -> ConnectionLost:
        """Drop the connection without a farewell, which would not be answered either."""
        self._socket.transport.abort()
        return ConnectionLost("The server has stopped answering; check it and the network, then try again.")


@asynccontextmanager
async def open_session(url: str, start: Start) -> AsyncIterator[Session]:
    """Connect, send `start` and wait for the server's greeting; the connection is closed on the way out.

    Raises:
        BadAddress: the URL is no WebSocket address.
        ServerUnreachable: nobody answers there, or something that is not a tickscribe server.
        ServerRefused: the server answers with an error, such as `server_full`.
    """
    socket = await _connect(url)
    try:
        yield Session(socket, await _greet(socket, start))
    finally:
        await socket.close()


async def transcribe(
    url: str, start: Start, audio: AsyncIterable[bytes], *, on_event: Callable[[StreamEvent], None]
) -> None:
    """Stream audio through one session, from connecting until everything is answered.

    Where `audio` itself raises, what was sent so far is still answered before the exception goes on.

    Args:
        url: the server's `/v1/stream`.
        start: settings of the session.
        audio: pieces of audio in the format of `start`, at the caller's pace.
        on_event: called for every event, in order.

    Raises:
        ClientError: the session could not be opened or ended early.
    """
    async with open_session(url, start) as session:
        sender = asyncio.create_task(_send_all(session, audio))
        try:
            async for event in session.events():
                on_event(event)
        except BaseException:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)  # the reader's exception is the one that tells why
            raise
        await sender


def pcm16(samples: Samples) -> bytes:
    """Write samples as little-endian 16-bit integers, the format of a default `Start`.

    Args:
        samples: (n,) float32; what lies beyond -1..1 is clipped.
    """
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


async def _send_all(session: Session, audio: AsyncIterable[bytes]) -> None:
    try:
        async for piece in audio:
            await session.send(piece)
    except ConnectionLost:
        raise
    except Exception:  # the source failed: what it gave until then is answered first
        await session.finish()
        raise
    await session.finish()


async def _connect(url: str) -> ClientConnection:
    try:
        # A pong comes only after a server that is behind has taken all audio: pings cannot tell whether it lives.
        return await connect_socket(
            url, compression=None, open_timeout=CONNECT_TIMEOUT_S, close_timeout=CLOSE_TIMEOUT_S, ping_timeout=None
        )
    except (InvalidURI, ValueError) as error:
        raise BadAddress(f"{url!r} is not a WebSocket address; it should look like {_EXAMPLE_URL}.") from error
    except InvalidStatus as error:
        raise _wrong_answer(url, error.response.status_code) from error
    except InvalidHandshake as error:
        raise ServerUnreachable(
            f"What answers at {url} is not a tickscribe server; check host and port, and ws:// against wss://."
        ) from error
    except ssl.SSLError as error:
        raise ServerUnreachable(f"No secure connection to {url}: {error.reason or error}.") from error
    except TimeoutError as error:
        raise ServerUnreachable(f"{url} did not answer within {CONNECT_TIMEOUT_S:.0f} s.") from error
    except (OSError, EOFError, InvalidProxy) as error:
        raise ServerUnreachable(
            f"No server answers at {url}; start one with `tickscribe serve`, or name another with --url."
        ) from error


async def _greet(socket: ClientConnection, start: Start) -> ReadyMessage:
    """Send `start` and take the answer."""
    try:
        await socket.send(encode(start))
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            answer = decode_server_message(await socket.recv())
    except TimeoutError as error:
        raise ServerUnreachable(
            f"The server took the connection but did not greet within {CONNECT_TIMEOUT_S:.0f} s."
        ) from error
    except ConnectionClosed as error:
        raise _lost(error) from error
    except ProtocolError as error:
        raise ServerUnreachable(f"What answers is not a tickscribe server: {error.message}") from error
    match answer:
        case ReadyMessage():
            return answer
        case ErrorMessage():
            raise _refused(answer)
        case _:
            raise ConnectionLost("The server closed the session before it began; try again.")


def _wrong_answer(url: str, status: int) -> ServerUnreachable:
    if status == 503:
        return ServerUnreachable(f"The server at {url} is not ready yet (HTTP 503); try again in a moment.")
    return ServerUnreachable(
        f"What answers at {url} opens no WebSocket there (HTTP {status}); the path should be /v1/stream."
    )


def _refused(message: ErrorMessage | None) -> ClientError:
    if message is None:
        return ConnectionLost("The server stopped before everything was answered; try again later.")
    kind: type[ServerRefused] = ServerFull if message.code is ErrorCode.SERVER_FULL else ServerRefused
    return kind(message.code, message.message)


def _lost(error: ConnectionClosed) -> ClientError:
    """Name a connection that ended without a `closed` message."""
    frame = error.rcvd
    if frame is None:
        return ConnectionLost("The connection broke before everything was answered; check the network and try again.")
    if frame.code == _TRY_LATER:
        return ServerFull(ErrorCode.SERVER_FULL, frame.reason or "The server is full; try again later.")
    return ConnectionLost(
        f"The server closed the connection early: {frame.reason or 'no reason given'} (code {frame.code})."
    )
