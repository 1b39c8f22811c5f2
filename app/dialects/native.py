"""The native protocol of `/v1/stream`, sans-I/O: text and bytes in, typed events out, and back.

Stands between the socket (`gateway.py`) and everything typed. `Connection` holds the state of one conversation and
refuses what is out of turn; the words themselves are in `messages.py`. This file knows no socket, no clock, no engine
and no audio arithmetic; it runs wherever its caller runs.

Laws, each with a test of the same name:
    - rubbish never raises anything but `ProtocolError`;
    - `closed` is the last message of a conversation, exactly once;
    - an unknown field is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import assert_never

from engine.types import SAMPLE_RATE, CloseReason, Final, Partial, SessionClosed, SpeechStarted, Suppressed
from tickscribe.messages import (
    MAX_CHANNELS,
    MAX_MESSAGE_BYTES,
    MAX_SAMPLE_RATE,
    MIN_SAMPLE_RATE,
    Audio,
    AudioFormat,
    ClientEvent,
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
    ServerMessage,
    SpeechStartedMessage,
    Start,
    WarningMessage,
    WireSegment,
    WireWord,
    decode_client_message,
    decode_query,
    encode,
    quote,
)


class _State(Enum):
    AWAITING_START = auto()
    STREAMING = auto()
    FINISHING = auto()
    CLOSED = auto()


class Connection:
    """One conversation: `receive` what the client says, `send` what the engine says, until `close`.

    Call `start` or `receive` as frames come; each gives one event or raises `ProtocolError`, after which the
    conversation is over but for what `send` still flushes and `close`.

    Attributes:
        session_id: told to the client by `ready`.
        wants_debug: the client asked to be told of text that was suppressed.
    """

    def __init__(self, *, session_id: str, model: str, languages: Iterable[str]) -> None:
        self.session_id = session_id
        self.wants_debug = False
        self._model = model
        self._languages = tuple(languages)
        self._state = _State.AWAITING_START

    # ------------------------------------------------------------------------------------------- inward

    def start(self, query: Iterable[tuple[str, str]]) -> Start:
        """Begin by the query parameters of the URL instead of a `start` message."""
        return self._started(decode_query(query))

    def receive(self, message: str | bytes) -> ClientEvent:
        """Take one frame.

        Raises:
            ProtocolError: the frame is no message, too big, or out of turn; nothing else is ever raised.
        """
        if len(message) > MAX_MESSAGE_BYTES:
            raise ProtocolError(
                ErrorCode.TOO_BIG, f"One frame may hold {MAX_MESSAGE_BYTES} bytes; split the audio into smaller ones."
            )
        if isinstance(message, bytes):
            return self._received_audio(message)
        event = decode_client_message(message)
        match event:
            case Start():
                return self._started(event)
            case Finish():
                return self._received_finish(event)
            case _:
                assert_never(event)

    def _started(self, start: Start) -> Start:
        if self._state is not _State.AWAITING_START:
            raise ProtocolError(ErrorCode.WRONG_STATE, "The session has started; open a new socket for another.")
        _check_audio_format(start)
        if start.language is not None and start.language not in self._languages:
            raise ProtocolError(
                ErrorCode.UNKNOWN_LANGUAGE,
                f"The model {self._model} does not know the language {quote(start.language)}; it knows "
                f"{', '.join(self._languages)}. Leave language out to have it detected.",
            )
        self._state = _State.STREAMING
        self.wants_debug = start.debug
        return start

    def _received_audio(self, data: bytes) -> Audio:
        match self._state:
            case _State.AWAITING_START:
                raise ProtocolError(ErrorCode.WRONG_STATE, "Audio came before start; send a start message first.")
            case _State.STREAMING:
                return Audio(data)
            case _:
                raise ProtocolError(ErrorCode.WRONG_STATE, "Audio came after finish; open a new socket to go on.")

    def _received_finish(self, finish: Finish) -> Finish:
        if self._state is not _State.STREAMING:
            raise ProtocolError(ErrorCode.WRONG_STATE, "Finish belongs once, after start and the audio.")
        self._state = _State.FINISHING
        return finish

    # ------------------------------------------------------------------------------------------- outward

    def ready(self) -> str:
        """Say that audio may flow."""
        return self._encode(
            ReadyMessage(
                session_id=self.session_id, model=self._model, sample_rate=SAMPLE_RATE, languages=self._languages
            )
        )

    def send(self, event: SpeechStarted | Partial | Final | Suppressed | WarningMessage) -> str:
        """Say what the engine found, or what the user should know."""
        return self._encode(event if isinstance(event, WarningMessage) else message_of(event))

    def error(self, fault: ProtocolError) -> str:
        """Say why the session ends; `close` must follow."""
        return self._encode(ErrorMessage(code=fault.code, message=fault.message))

    def close(self, reason: EndOfSession) -> str:
        """Say that this is the end; nothing may be said after it."""
        text = self._encode(ClosedMessage(reason=reason))
        self._state = _State.CLOSED
        return text

    def _encode(self, message: ServerMessage) -> str:
        assert self._state is not _State.CLOSED, f"{type(message).__name__} after closed"
        return encode(message)


def fault_of(closed: SessionClosed) -> ProtocolError | None:
    """The error to tell the client when the engine ended its session; None where nothing went wrong."""
    match closed.reason:
        case CloseReason.FINISHED | CloseReason.ABANDONED:
            return None
        case CloseReason.FAILED:
            message = closed.message or "The server failed while transcribing; connect again."
            return ProtocolError(ErrorCode.INTERNAL, message)
        case CloseReason.SHUTDOWN:
            return ProtocolError(ErrorCode.SHUTTING_DOWN, closed.message or "The server stops; connect again later.")
        case _:
            assert_never(closed.reason)


def _check_audio_format(start: Start) -> None:
    if start.format not in tuple(AudioFormat):
        known = " or ".join(AudioFormat)
        raise ProtocolError(ErrorCode.AUDIO_FORMAT, f"The format {quote(start.format)} is unknown; send {known}.")
    if not MIN_SAMPLE_RATE <= start.sample_rate <= MAX_SAMPLE_RATE:
        raise ProtocolError(
            ErrorCode.AUDIO_FORMAT,
            f"sample_rate is {start.sample_rate}; it must lie between {MIN_SAMPLE_RATE} and {MAX_SAMPLE_RATE}.",
        )
    if not 1 <= start.channels <= MAX_CHANNELS:
        raise ProtocolError(
            ErrorCode.AUDIO_FORMAT, f"channels is {start.channels}; it must lie between 1 and {MAX_CHANNELS}."
        )


def message_of(
    event: SpeechStarted | Partial | Final | Suppressed,
) -> SpeechStartedMessage | PartialMessage | FinalMessage | DebugMessage:
    """What a client is told of an event."""
    match event:
        case SpeechStarted():
            return SpeechStartedMessage(utterance=event.utterance_id, start=_seconds(event.start))
        case Partial():
            # The engine keeps each word's leading space; the text as a whole begins without one.
            committed = event.committed.lstrip()
            return PartialMessage(
                utterance=event.utterance_id,
                revision=event.revision,
                committed=committed,
                tentative=event.tentative if committed else event.tentative.lstrip(),
                start=_seconds(event.start),
                end=_seconds(event.end),
                language=event.language,
                language_probability=round(event.language_prob, 3),
            )
        case Final():
            return FinalMessage(
                utterance=event.utterance_id,
                text=event.text.strip(),
                start=_seconds(event.start),
                end=_seconds(event.end),
                reason=event.reason,
                language=event.language,
                language_probability=round(event.language_prob, 3),
                segments=tuple(WireSegment(s.text.strip(), _seconds(s.start), _seconds(s.end)) for s in event.segments),
                words=tuple(
                    WireWord(w.text.strip(), _seconds(w.start), _seconds(w.end), round(w.probability, 3))
                    for w in event.words
                ),
            )
        case Suppressed():
            return DebugMessage(
                utterance=event.utterance_id,
                reason=event.reason,
                text=event.text,
                start=_seconds(event.start),
                end=_seconds(event.end),
                avg_logprob=round(event.avg_logprob, 3),
                no_speech_prob=round(event.no_speech_prob, 3),
            )
        case _:
            assert_never(event)


def _seconds(samples: int) -> float:
    return round(samples / SAMPLE_RATE, 3)
