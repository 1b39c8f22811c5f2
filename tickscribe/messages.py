"""The words of the native protocol of `/v1/stream`: messages, error codes, close codes.

A text frame is a JSON object with a `type`, a binary frame is audio. `protocol.py` says which word may come when; a
client needs only this file. Knows no socket, no clock and no engine but its enumerations.

Times on the wire are seconds on the session's sample clock, to the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType

import msgspec

from engine.errors import ConfigError
from engine.types import SAMPLE_RATE, EndReason, SessionSettings, Stability, SuppressReason, Task

MAX_MESSAGE_BYTES = 1 << 20  # of one frame, text or audio
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 96_000
MAX_CHANNELS = 8
_DEFAULTS = SessionSettings()
_MAX_QUOTE = 200  # characters of a client's own words repeated in an error


# ----------------------------------------------------------------------------------------------- errors


class ErrorCode(StrEnum):
    """Everything that can end a conversation before its time; the `code` of an `error` message."""

    BAD_MESSAGE = "bad_message"  # not JSON, too deep, unknown type or field, value of a wrong type or out of range
    AUDIO_FORMAT = "audio_format"  # format, rate, channels, half a sample, no number
    WRONG_STATE = "wrong_state"  # audio before start, a second start, anything after finish
    TOO_BIG = "too_big"  # a frame above MAX_MESSAGE_BYTES
    UNKNOWN_LANGUAGE = "unknown_language"  # the model does not speak it
    BAD_SETTING = "bad_setting"  # a name that does not exist, too long, or more than the model can do
    LOADING = "loading"  # the model is not ready yet
    SERVER_FULL = "server_full"  # no room for another session
    OVERLOADED = "overloaded"  # the server cannot keep up with this session
    IDLE_TIMEOUT = "idle_timeout"  # no audio for too long
    SLOW_CLIENT = "slow_client"  # the client does not read what it is sent
    SHUTTING_DOWN = "shutting_down"  # the server stops
    INTERNAL = "internal"  # our fault


class WarningCode(StrEnum):
    """Everything that a session goes on after; the `code` of a `warning` message."""

    AUDIO_SUSPICIOUS = "audio_suspicious"  # the audio can hardly be what `start` says it is


class CloseCode(IntEnum):
    """WebSocket close codes in use (RFC 6455, section 7.4, and the IANA registry)."""

    NORMAL = 1000
    UNSUPPORTED_DATA = 1003
    INVALID_PAYLOAD = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    RESTART = 1012
    TRY_LATER = 1013


CLOSE_CODES: Mapping[ErrorCode, CloseCode] = MappingProxyType(
    {
        ErrorCode.BAD_MESSAGE: CloseCode.INVALID_PAYLOAD,
        ErrorCode.AUDIO_FORMAT: CloseCode.UNSUPPORTED_DATA,
        ErrorCode.WRONG_STATE: CloseCode.POLICY,
        ErrorCode.TOO_BIG: CloseCode.TOO_BIG,
        ErrorCode.UNKNOWN_LANGUAGE: CloseCode.POLICY,
        ErrorCode.BAD_SETTING: CloseCode.POLICY,
        ErrorCode.LOADING: CloseCode.TRY_LATER,
        ErrorCode.SERVER_FULL: CloseCode.TRY_LATER,
        ErrorCode.OVERLOADED: CloseCode.TRY_LATER,
        ErrorCode.IDLE_TIMEOUT: CloseCode.POLICY,
        ErrorCode.SLOW_CLIENT: CloseCode.POLICY,
        ErrorCode.SHUTTING_DOWN: CloseCode.RESTART,
        ErrorCode.INTERNAL: CloseCode.INTERNAL,
    }
)


class ProtocolError(Exception):
    """A conversation must end; `code` is for programs, `message` is a sentence for people."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# ----------------------------------------------------------------------------------------------- messages


class AudioFormat(StrEnum):
    """How samples lie in a binary frame: little endian, channels interleaved."""

    PCM16 = "pcm16"
    FLOAT32 = "float32"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A JSON object of the wire."""


class _ClientMessage(_Message, frozen=True, forbid_unknown_fields=True):
    """What a client says: a field we do not know is a mistake or a wish that we would silently ignore."""


class Start(_ClientMessage, frozen=True, tag="start"):
    """Open the session. Every field has a default.

    `language` null detects it, `interim` false sends finals only, `debug` true tells of text that was suppressed; the
    rest is described at `SessionSettings`, which also gives the defaults.
    """

    format: str = AudioFormat.PCM16.value
    sample_rate: int = SAMPLE_RATE
    channels: int = 1
    language: str | None = None
    interim: bool = True
    pause_ms: int | None = None
    min_speech_ms: int = _DEFAULTS.min_speech_ms
    threshold: float = _DEFAULTS.threshold
    max_utterance_s: float = _DEFAULTS.max_utterance_s
    task: str = Task.TRANSCRIBE.value
    stability: str = Stability.BALANCED.value
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    previous_text: bool = False
    debug: bool = False

    @property
    def settings(self) -> SessionSettings:
        """What of this concerns the engine; settings.py must have checked the names.

        Raises:
            ProtocolError: (bad_message) a value is out of its range.
        """
        try:
            return SessionSettings(
                language=self.language,
                interim=self.interim,
                pause_ms=self.pause_ms,
                min_speech_ms=self.min_speech_ms,
                threshold=self.threshold,
                max_utterance_s=self.max_utterance_s,
                task=Task(self.task),
                stability=Stability(self.stability),
                prompt=self.prompt,
                hotwords=self.hotwords,
                previous_text=self.previous_text,
            )
        except ConfigError as error:
            raise ProtocolError(ErrorCode.BAD_MESSAGE, str(error)) from error


class Finish(_ClientMessage, frozen=True, tag="finish"):
    """No more audio comes: answer everything, then close."""


class Audio(msgspec.Struct, frozen=True):
    """A binary frame."""

    data: bytes


ClientEvent = Start | Finish | Audio


class ReadyMessage(_Message, frozen=True, tag="ready"):
    """The session is open; audio may flow."""

    session_id: str
    model: str
    sample_rate: int
    languages: tuple[str, ...] = ()


class SpeechStartedMessage(_Message, frozen=True, tag="speech_started"):
    """An utterance began."""

    utterance: int
    start: float


class PartialMessage(_Message, frozen=True, tag="partial"):
    """An open utterance so far: `committed + tentative` is its text, `committed` only grows."""

    utterance: int
    revision: int
    committed: str
    tentative: str
    start: float
    end: float
    language: str = ""
    language_probability: float = 1.0


class WireSegment(msgspec.Struct, frozen=True):
    """About a sentence of a final."""

    text: str
    start: float
    end: float


class WireWord(msgspec.Struct, frozen=True):
    """One word of a final."""

    word: str
    start: float
    end: float
    probability: float


class FinalMessage(_Message, frozen=True, tag="final"):
    """The text of a finished utterance; never revised."""

    utterance: int
    text: str
    start: float
    end: float
    reason: EndReason
    language: str
    language_probability: float = 1.0
    segments: tuple[WireSegment, ...] = ()
    words: tuple[WireWord, ...] = ()


class DebugMessage(_Message, frozen=True, tag="debug"):
    """A hypothesis that was kept from the text; only where `start` asks for it."""

    utterance: int
    reason: SuppressReason
    text: str
    start: float
    end: float
    avg_logprob: float
    no_speech_prob: float


class WarningMessage(_Message, frozen=True, tag="warning"):
    """Something the user should know; the session goes on."""

    code: WarningCode
    message: str


class ErrorMessage(_Message, frozen=True, tag="error"):
    """The session ends; `closed` follows."""

    code: ErrorCode
    message: str


class EndOfSession(StrEnum):
    """The `reason` of `closed`."""

    FINISHED = "finished"  # the client said finish and everything was answered
    ERROR = "error"  # an `error` message came before


class ClosedMessage(_Message, frozen=True, tag="closed"):
    """Always the last message."""

    reason: EndOfSession


ServerMessage = (
    ReadyMessage
    | SpeechStartedMessage
    | PartialMessage
    | FinalMessage
    | DebugMessage
    | WarningMessage
    | ErrorMessage
    | ClosedMessage
)

_from_client = msgspec.json.Decoder(Start | Finish)
_from_server = msgspec.json.Decoder(ServerMessage)
_encoder = msgspec.json.Encoder()


def encode(message: Start | Finish | ServerMessage) -> str:
    """Write a message as the text of one frame."""
    return _encoder.encode(message).decode()


def decode_client_message(text: str) -> Start | Finish:
    """Read what a client sent; for servers.

    Raises:
        ProtocolError: (bad_message) it is not a message of this protocol.
    """
    try:
        return _from_client.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of Unicode are ValueErrors
        raise _bad_message("The text frame is no message of this protocol", error) from error


def decode_query(query: Iterable[tuple[str, str]]) -> Start:
    """Read a `start` from the parameters of a URL; an empty language is none, hotwords stand between commas.

    Raises:
        ProtocolError: (bad_message) a parameter is unknown, doubled or of the wrong type.
    """
    fields = dict[str, str | list[str] | None]()
    for name, value in query:
        if name in fields:
            raise ProtocolError(ErrorCode.BAD_MESSAGE, f"The query names {quote(name)} twice; give it once.")
        match name:
            case "language":
                fields[name] = value or None
            case "hotwords":
                fields[name] = value.split(",") if value else []
            case _:
                fields[name] = value
    try:
        return msgspec.convert(fields, Start, strict=False)
    except (ValueError, RecursionError) as error:
        raise _bad_message("The query cannot be read", error) from error


def decode_server_message(text: str | bytes) -> ServerMessage:
    """Read what a server sent; for clients.

    Raises:
        ProtocolError: (bad_message) it is not a message of this protocol.
    """
    try:
        return _from_server.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of Unicode are ValueErrors
        raise ProtocolError(ErrorCode.BAD_MESSAGE, f"The server sent no message of this protocol: {error}") from error


def _bad_message(what: str, error: Exception) -> ProtocolError:
    """Name what was wrong with a client's message, quoting the decoder."""
    detail = _printable(str(error))
    return ProtocolError(
        ErrorCode.BAD_MESSAGE,
        f"{what}: {detail}. Known are start ({', '.join(Start.__struct_fields__)}) and finish.",
    )


def quote(text: str) -> str:
    """Repeat a client's own word in an error, shortened."""
    return repr(_printable(text))


def _printable(text: str) -> str:
    return text[:_MAX_QUOTE].encode(errors="replace").decode()  # a client may send half characters
