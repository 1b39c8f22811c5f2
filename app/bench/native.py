"""tickscribe's own protocol for the load generator, and what its messages mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection

from app.bench.delays import Update
from app.bench.load import LoadError, Message
from app.client import pcm16
from app.messages import (
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
from engine.types import EndReason, Samples


@dataclass(frozen=True, slots=True)
class NativeDialect:
    """Speaks `/v1/stream` in pcm16."""

    url: str
    quiet_s: float | None = None  # `closed` is the last message

    async def greet(self, socket: ClientConnection, number: int) -> None:
        """Start, and wait for `ready`."""
        await socket.send(encode(Start(language="en")))
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
