"""The load generator: N paced speakers over WebSockets, in a process of its own.

Open loop: packet k of a speaker leaves at an absolute time, whether or not anything was answered. Messages are kept as
they come, with the time at which they came; what they mean is judged afterwards, so that the generator has little to
do. How late it was itself is part of the result. Knows servers only by their `Dialect`.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from engine.types import SAMPLE_RATE, Samples

PACKET_SAMPLES = SAMPLE_RATE // 10
_LEAD_S = 1.0  # to connect everybody before the first packet
_CONNECT_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 60.0  # after the last packet
_PRIORITY = -10
_HELD_UP_S = 0.02  # a send that takes longer waits for the server


class Dialect(Protocol):
    """How one kind of server is spoken to; sent to the generator's process, so it holds no socket."""

    @property
    def url(self) -> str:
        """Where to connect."""
        ...

    async def greet(self, socket: ClientConnection, number: int) -> None:
        """Do what comes before audio; raises LoadError where the server does not want to."""
        ...

    def packet(self, samples: Samples) -> bytes:
        """Write (n,) float32 samples as a frame."""
        ...

    async def finish(self, socket: ClientConnection) -> None:
        """Say that no more audio comes."""
        ...

    def is_last(self, message: str) -> bool:
        """Whether nothing comes after this message."""
        ...

    @property
    def quiet_s(self) -> float | None:
        """None where the server answers everything after `finish`; others are done when they say nothing new so long.

        Such a server is told to finish only then, because it drops what it has not answered.
        """
        ...


class LoadError(Exception):
    """A server did not behave as its protocol says; the message says how."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one speaker sends: audio from `offset_s` after the beginning on, (n,) float32 mono 16 kHz."""

    offset_s: float
    audio: Samples


@dataclass(frozen=True, slots=True)
class Message:
    """A text message and when it came, in seconds of the speaker's clock: sample n is said at n / 16000."""

    at_s: float
    text: str


@dataclass(slots=True)
class Trace:
    """What one speaker heard.

    Attributes:
        lateness_s: of each packet: how long after its time the generator turned to it, less what the server held it up.
        held_up_s: longest time that the server took to accept a packet.
        fault: why the conversation ended early; None if it ended as it should.
    """

    messages: list[Message] = field(default_factory=list)
    lateness_s: list[float] = field(default_factory=list)
    held_up_s: float = 0.0
    fault: str | None = None


def run_load(dialect: Dialect, parts: Sequence[Part]) -> list[Trace]:
    """Let all speak, in another process; returns once all are answered."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawning, initializer=_take_precedence) as process:
        return process.submit(speak, dialect, parts).result()


def _take_precedence() -> None:
    """Go before the server where both share the cores, as a machine of its own would; only root may."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)


def speak(dialect: Dialect, parts: Sequence[Part]) -> list[Trace]:
    """Let all speak, in this process."""
    return asyncio.run(_speak(dialect, parts))


async def speak_alone(dialect: Dialect, audio: Samples, *, pace: float) -> Trace:
    """Let one speaker speak on the running event loop.

    Args:
        audio: (n,) float32 mono 16 kHz.
        pace: seconds of audio per second; on the speaker's clock, too, time passes so much faster.
    """
    trace = Trace()
    begin = asyncio.get_running_loop().time() + _LEAD_S
    await _converse(dialect, 0, _packets(dialect, audio), begin, trace, pace=pace)
    return trace


async def _speak(dialect: Dialect, parts: Sequence[Part]) -> list[Trace]:
    packets = [_packets(dialect, part.audio) for part in parts]
    traces = [Trace() for _ in parts]
    begin = asyncio.get_running_loop().time() + _LEAD_S + 0.02 * len(parts)
    async with asyncio.TaskGroup() as group:
        for number, (part, frames, trace) in enumerate(zip(parts, packets, traces, strict=True)):
            group.create_task(_converse(dialect, number, frames, begin + part.offset_s, trace))
    return traces


def _packets(dialect: Dialect, audio: Samples) -> list[bytes]:
    return [dialect.packet(audio[at : at + PACKET_SAMPLES]) for at in range(0, len(audio), PACKET_SAMPLES)]


async def _converse(
    dialect: Dialect, number: int, packets: Sequence[bytes], begin: float, trace: Trace, *, pace: float = 1.0
) -> None:
    """One speaker from connecting to the last answer; its fault is its own."""
    try:
        async with connect(
            dialect.url,
            compression=None,
            proxy=None,
            max_size=None,
            open_timeout=_CONNECT_TIMEOUT_S,
            ping_interval=None,
        ) as socket:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await dialect.greet(socket, number)
            listener = asyncio.create_task(_listen(dialect, socket, begin, trace, pace=pace))
            try:
                await _send(socket, packets, begin, trace, pace=pace)
                if dialect.quiet_s is not None:
                    await _until_quiet(trace, dialect.quiet_s)
                await dialect.finish(socket)
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await listener
            finally:
                listener.cancel()
    except TimeoutError:
        trace.fault = f"no answer within {_ANSWER_TIMEOUT_S:.0f} s"
    except (OSError, WebSocketException, LoadError) as error:
        trace.fault = f"{type(error).__name__}: {error}"


async def _send(socket: ClientConnection, packets: Sequence[bytes], begin: float, trace: Trace, *, pace: float) -> None:
    """Send each packet when its last sample has been said."""
    loop = asyncio.get_running_loop()
    free_at = loop.time()  # the server has greeted, or has taken the packet before
    for number, packet in enumerate(packets, start=1):
        due = begin + number * PACKET_SAMPLES / SAMPLE_RATE / pace
        await asyncio.sleep(due - loop.time())
        turned = loop.time()
        trace.lateness_s.append(turned - max(due, free_at))
        await socket.send(packet)
        held_up_s = loop.time() - turned
        if held_up_s > _HELD_UP_S:
            free_at = turned + held_up_s
        trace.held_up_s = max(trace.held_up_s, held_up_s)


async def _listen(dialect: Dialect, socket: ClientConnection, begin: float, trace: Trace, *, pace: float) -> None:
    """Keep messages until the last one; one that repeats the one before it is news to nobody."""
    loop = asyncio.get_running_loop()
    try:
        async for message in socket:
            text = message if isinstance(message, str) else message.decode()
            if not trace.messages or trace.messages[-1].text != text:
                trace.messages.append(Message((loop.time() - begin) * pace, text))
            if dialect.is_last(text):
                return
    except ConnectionClosed:
        pass  # broken off: said below, as for one that was closed in order
    if dialect.quiet_s is None:
        raise LoadError("the connection ended before everything was answered")


async def _until_quiet(trace: Trace, quiet_s: float) -> None:
    """Wait until nothing new came for so long."""
    deadline = asyncio.get_running_loop().time() + _ANSWER_TIMEOUT_S
    n_heard = -1
    while n_heard != len(trace.messages) and asyncio.get_running_loop().time() < deadline:
        n_heard = len(trace.messages)
        await asyncio.sleep(quiet_s)
