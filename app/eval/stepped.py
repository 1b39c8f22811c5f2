"""Recordings as live speech without a clock: a packet at a time into an engine of this process, which does all that is
to be done before the next packet comes.

What is shown, and when, depends on nothing but the audio: the same every time, on any machine, in less than real time.
Delays are those of the rules alone, as on a machine that computes in no time.
"""

from __future__ import annotations

from app.bench.load import PACKET_SAMPLES, Message, Trace
from app.dialects.native import fault_of, message_of
from app.eval.streamed import with_tail
from engine.core import Engine
from engine.types import SAMPLE_RATE, Progress, Samples, SessionClosed, SessionSettings, Stability
from tickscribe.messages import ClosedMessage, EndOfSession, encode


def speak(engine: Engine, name: str, audio: Samples, language: str | None, stability: Stability) -> Trace:
    """Let one recording be spoken; gives what was heard, as `streamed.stream_all` does.

    Args:
        name: of the session; not open in the engine.
        audio: (n,) float32 mono 16 kHz.
        language: None detects it.
        stability: what partials show.
    """
    audio = with_tail(audio)
    trace = Trace()
    engine.open(name, SessionSettings(language=language, stability=stability))
    for start in range(0, len(audio), PACKET_SAMPLES):
        packet = audio[start : start + PACKET_SAMPLES]
        engine.push(name, packet)
        _take(trace, engine, (start + len(packet)) / SAMPLE_RATE)
        if trace.fault:
            return trace
    engine.finish(name)
    _take(trace, engine, len(audio) / SAMPLE_RATE)
    return trace


def _take(trace: Trace, engine: Engine, at_s: float) -> None:
    for event in (event for events, _ in engine.until_idle() for _, event in events):
        match event:
            case SessionClosed():
                fault = fault_of(event)
                trace.fault = fault.message if fault else None
                closed = ClosedMessage(EndOfSession.ERROR if fault else EndOfSession.FINISHED)
                trace.messages.append(Message(at_s, encode(closed)))
            case Progress():
                pass
            case _:
                trace.messages.append(Message(at_s, encode(message_of(event))))
