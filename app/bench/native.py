"""tickscribe as a server under test: how it is started, its protocol for the load generator, what its messages mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection

from app.bench.delays import Update
from app.bench.load import LoadError, Message
from engine.config import EngineConfig
from engine.types import EndReason, Samples, Stability
from tickscribe.client import pcm16
from tickscribe.command import console_script
from tickscribe.messages import (
    ClosedMessage,
    EndOfSession,
    ErrorMessage,
    FinalMessage,
    Finish,
    PartialMessage,
    ReadyMessage,
    Start,
    decode_server_message,
    encode,
)


def serve_command(engine: EngineConfig, port: int, *, max_sessions: int, flags: Sequence[str] = ()) -> list[str]:
    """The command that serves with these settings on this machine; further flags come last, so that they win."""
    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--model": engine.model,
        "--device": engine.device.value,
        "--dtype": engine.dtype.value,
        "--encoder": engine.encoder.value,
        "--context": engine.context.value,
        "--freeze-after-s": engine.freeze_after_s,
        "--branches": engine.n_branches,
        "--gather-ms": engine.gather_ms,
        "--slots": engine.n_slots,
        "--threads": engine.n_threads,
        "--pause-ms": engine.pause_ms,
        "--max-sessions": max_sessions,
        "--log-level": "warning",
    }
    named = [str(word) for flag, value in settings.items() if value is not None for word in (flag, value)]
    return [console_script(), "serve", *named, *flags]


@dataclass(frozen=True, slots=True)
class NativeDialect:
    """Speaks `/v1/stream` in pcm16, in a language or with None in one to be detected."""

    url: str
    language: str | None = "en"
    stability: Stability = Stability.BALANCED
    quiet_s: float | None = None  # `closed` is the last message

    async def greet(self, socket: ClientConnection, number: int) -> None:
        """Start, and wait for `ready`."""
        await socket.send(encode(Start(language=self.language, stability=self.stability.value)))
        answer = decode_server_message(await socket.recv())
        if not isinstance(answer, ReadyMessage):
            raise LoadError(f"instead of a greeting came {answer}")

    def packet(self, samples: Samples) -> bytes:
        """Write samples as pcm16."""
        return pcm16(samples)

    async def finish(self, socket: ClientConnection) -> None:
        """Say finish."""
        await socket.send(encode(Finish()))

    def is_last(self, message: str) -> bool:
        """Only `closed` is; the text is looked at, not decoded."""
        return '"closed"' in message[:40]


def to_updates(messages: Sequence[Message]) -> list[Update]:
    """What the speaker could read after each message."""
    done: list[str] = []  # finals, in order
    open_text: dict[int, tuple[str, str]] = {}  # utterance -> committed, tentative
    updates = []
    for message in messages:
        match decode_server_message(message.text):
            case FinalMessage(utterance=utterance, text=text):
                open_text.pop(utterance, None)
                done.append(text)
            case PartialMessage(utterance=utterance, committed=committed, tentative=tentative):
                open_text[utterance] = (committed, tentative)
            case _:
                continue
        final = " ".join(done)
        committed = " ".join([final, *(committed for committed, _ in open_text.values())])
        shown = " ".join([final, *(committed + tentative for committed, tentative in open_text.values())])
        updates.append(Update(message.at_s, final=final, committed=committed, shown=shown))
    return updates


def finalisation_s(messages: Sequence[Message]) -> Iterator[tuple[float, float]]:
    """Give for each final that a pause ended: the end of speech as the server has it, and from there to the final."""
    for message in messages:
        match decode_server_message(message.text):
            case FinalMessage(reason=EndReason.PAUSE, end=end, text=text) if text:
                yield end, message.at_s - end
            case _:
                continue


def fault(messages: Sequence[Message]) -> str | None:
    """Why the session did not end as it should; None if it did."""
    fault: str | None = "no closed message"
    for message in messages:
        match decode_server_message(message.text):
            case ErrorMessage(code=code, message=sentence):
                return f"{code}: {sentence}"
            case ClosedMessage(reason=EndOfSession.FINISHED):
                fault = None
            case _:
                continue
    return fault
