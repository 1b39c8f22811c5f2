"""The protocols of other live Whisper servers, for the load generator, and what their messages mean.

Sources: whisper_live/server.py and backend/base.py of whisper-live 0.10.0; whisperlivekit/basic_server.py and
timed_objects.py of whisperlivekit 0.2.26.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection

from app.bench.delays import Update
from app.bench.load import LoadError, Message
from engine.types import Samples
from tickscribe.client import pcm16

_SILENCE = -2  # whisperlivekit's speaker number of a line that nobody spoke


@dataclass(frozen=True, slots=True)
class WhisperLiveDialect:
    """JSON options, float32 frames, END_OF_AUDIO; the server sends its last segments again on every pass."""

    url: str
    quiet_s: float | None = 10.0  # END_OF_AUDIO drops what is not answered yet

    async def greet(self, socket: ClientConnection, number: int) -> None:
        """Send the options that whisper-live's own client sends, and wait for SERVER_READY."""
        options = {
            "uid": str(number),
            "language": "en",
            "task": "transcribe",
            "model": "tiny.en",
            "use_vad": True,
            "send_last_n_segments": 10,
            "no_speech_thresh": 0.45,
            "clip_audio": False,
            "same_output_threshold": 10,
        }
        await socket.send(msgspec.json.encode(options).decode())
        while (answer := _decoded(await socket.recv())).get("message") != "SERVER_READY":
            if "status" in answer:
                raise LoadError(f"{answer['status']}: {answer.get('message')}")

    def packet(self, samples: Samples) -> bytes:
        """Write samples as float32."""
        return samples.astype("<f4").tobytes()

    async def finish(self, socket: ClientConnection) -> None:
        """Say END_OF_AUDIO; the server closes."""
        await socket.send(b"END_OF_AUDIO")

    def is_last(self, message: str) -> bool:
        """The server says nothing at the end."""
        return False

    def to_updates(self, messages: Sequence[Message]) -> list[Update]:
        """Completed segments are final, the last one may still change."""
        completed: dict[str, str] = {}  # start of a segment -> text; what is completed stays
        updates = []
        for message in messages:
            segments = _decoded(message.text).get("segments")
            if segments is None:
                continue
            completed.update((segment["start"], segment["text"]) for segment in segments if segment["completed"])
            final = " ".join(completed[start] for start in sorted(completed, key=float))
            shown = " ".join([final, *(segment["text"] for segment in segments if not segment["completed"])])
            updates.append(Update(message.at_s, final=final, committed=final, shown=shown))
        return updates


@dataclass(frozen=True, slots=True)
class WhisperLiveKitDialect:
    """PCM16 frames, an empty one at the end; the server sends all lines and its buffer again on every change."""

    url: str
    quiet_s: float | None = None  # `ready_to_stop` is the last message

    async def greet(self, socket: ClientConnection, number: int) -> None:
        """Wait for `config`."""
        answer = _decoded(await socket.recv())
        if answer.get("type") != "config":
            raise LoadError(f"instead of a greeting came {answer}")

    def packet(self, samples: Samples) -> bytes:
        """Write samples as pcm16."""
        return pcm16(samples)

    async def finish(self, socket: ClientConnection) -> None:
        """Send an empty frame."""
        await socket.send(b"")

    def is_last(self, message: str) -> bool:
        """Only `ready_to_stop` is."""
        return '"ready_to_stop"' in message[:40]

    def to_updates(self, messages: Sequence[Message]) -> list[Update]:
        """Lines are validated and stay, the buffer may still change."""
        updates = []
        for message in messages:
            state = _decoded(message.text)
            if "lines" not in state:
                continue
            final = " ".join(line["text"] or "" for line in state["lines"] if line["speaker"] != _SILENCE)
            shown = f"{final} {state.get('buffer_transcription', '')}"
            updates.append(Update(message.at_s, final=final, committed=final, shown=shown))
        return updates


PeerDialect = WhisperLiveDialect | WhisperLiveKitDialect


def _decoded(text: str | bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(text)
    except ValueError as error:
        raise LoadError(f"the server sent no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise LoadError("the server sent no JSON object")
    return answer
