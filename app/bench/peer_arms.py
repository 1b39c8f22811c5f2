"""Who takes part in `tickscribe bench peers`: how each server is started, and by which protocol it is spoken to.

Every arm has the same weights, int8 on the CPU, beam 1 where it has beams and no temperature fallback where it has one.
How many threads serve a peer best is for the run to find out. Where a peer has no flag for one of these, the script
that starts it sets it; what favours it is chosen: no limit on clients or on the time of a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bench import native, peer_environment
from app.bench.delays import Update
from app.bench.load import Dialect, Message, Trace
from app.bench.peer_dialects import WhisperLiveDialect, WhisperLiveKitDialect
from app.bench.peer_environment import Weights, install
from app.bench.point import Heard
from engine.types import Stability
from tickscribe.command import console_script

_MANY = 1000

# whisper-live's wheel has no command; this is its run_server.py with its own defaults, less the limits.
_WHISPER_LIVE = """
import functools, sys
from whisper_live.server import TranscriptionServer
from whisper_live.transcriber.transcriber_faster_whisper import WhisperModel
WhisperModel.transcribe = functools.partialmethod(WhisperModel.transcribe, beam_size=1, temperature=0.0)
port, model, batched = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "batched"
TranscriptionServer().run(
    "127.0.0.1", port=port, backend="faster_whisper", faster_whisper_custom_model_path=model, single_model=True,
    max_clients=1000, max_connection_time=36000, batch_enabled=batched, batch_max_queue_wait_s=1e9,
    batch_max_admissions_per_s=1e9,
)
"""

# whisperlivekit's LocalAgreement asks faster-whisper for five beams, without a flag to change it.
_WHISPER_LIVE_KIT = """
import runpy
from faster_whisper import WhisperModel
transcribe = WhisperModel.transcribe
WhisperModel.transcribe = lambda self, audio, **settings: transcribe(self, audio, **settings | {"beam_size": 1})
runpy.run_module("whisperlivekit.basic_server", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Arm:
    """One server in one setting.

    Attributes:
        settings: what is worth telling of how it runs.
        command: starts it on a port.
        ready_url: answers once it does, with {port} in it.
        dialect: speaks to it on a port.
        heard: what the messages of a trace mean.
    """

    name: str
    settings: str
    command: Callable[[int], Sequence[str]]
    ready_url: str
    dialect: Callable[[int], Dialect]
    heard: Callable[[Trace], Heard]


def ours(model: str, pause_ms: int, flags: Sequence[str], stability: Stability) -> Arm:
    """This project's server; with `Stability.FAST` it shows every word at once, as the others do."""

    def command(port: int) -> list[str]:
        named = ["--port", str(port), "--model", model, "--pause-ms", str(pause_ms), "--max-sessions", str(_MANY)]
        fixed = ["--host", "127.0.0.1", "--device", "cpu", "--log-level", "warning"]
        return [console_script(), "serve", *fixed, *named, *flags]

    def heard(trace: Trace) -> Heard:
        return Heard(native.to_updates(trace.messages), trace.fault or native.fault(trace.messages))

    return Arm(
        name=f"tickscribe {stability}",
        settings=" ".join(flags) or "defaults",
        command=command,
        ready_url="http://127.0.0.1:{port}/readyz",
        dialect=lambda port: native.NativeDialect(f"ws://127.0.0.1:{port}/v1/stream", stability=stability),
        heard=heard,
    )


def whisper_live(folder: Path, weights: Weights, *, batched: bool, n_threads: int, torch_index: str | None) -> Arm:
    """WhisperLive in its default mode (one model, one client after the other) or its batch mode.

    Raises:
        PeerUnavailable: it cannot be installed.
    """
    python = install(peer_environment.WHISPER_LIVE, folder, torch_index=torch_index)
    mode = "batched" if batched else "default"

    def command(port: int) -> list[str]:
        return [*_environment(n_threads), str(python), "-c", _WHISPER_LIVE, str(port), str(weights.ctranslate2), mode]

    return Arm(
        name=f"whisper-live {mode} t{n_threads}",
        settings=f"{peer_environment.WHISPER_LIVE.package}, {n_threads} threads, VAD on, one model, beam 1, no fallback"
        + (", at most 16 per batch, 50 ms" if batched else ""),
        command=command,
        ready_url="tcp://127.0.0.1:{port}",
        dialect=lambda port: WhisperLiveDialect(f"ws://127.0.0.1:{port}/"),
        heard=lambda trace: _judged_by(WhisperLiveDialect("").to_updates, trace),
    )


def whisper_live_kit(folder: Path, weights: Weights, *, policy: str, n_threads: int, torch_index: str | None) -> Arm:
    """WhisperLiveKit with one of its policies: simulstreaming (AlignAtt, its default) or localagreement.

    Raises:
        PeerUnavailable: it cannot be installed.
    """
    python = install(peer_environment.WHISPER_LIVE_KIT, folder, torch_index=torch_index)
    if policy == "simulstreaming":
        model = ["--decoder-model-path", str(weights.torch), "--encoder-model-path", str(weights.ctranslate2)]
        model += ["--custom-alignment-heads", weights.alignment_heads, "--beams", "1"]
    else:
        model = ["--model_dir", str(weights.ctranslate2)]
    flags = ["--backend-policy", policy, "--backend", "faster-whisper", "--lan", "en", "--pcm-input"]
    flags += ["--warmup-file", "", "-l", "WARNING"]

    def command(port: int) -> list[str]:
        program = [*_environment(n_threads), str(python), "-c", _WHISPER_LIVE_KIT]
        return [*program, "--host", "127.0.0.1", "--port", str(port), *flags, *model]

    return Arm(
        name=f"whisperlivekit {policy} t{n_threads}",
        settings=f"{peer_environment.WHISPER_LIVE_KIT.package}, {n_threads} threads, PCM input, CTranslate2 in best "
        + ("type as encoder, torch as decoder, greedy" if policy == "simulstreaming" else "type, beam 1"),
        command=command,
        ready_url="http://127.0.0.1:{port}/health",
        dialect=lambda port: WhisperLiveKitDialect(f"ws://127.0.0.1:{port}/asr"),
        heard=lambda trace: _judged_by(WhisperLiveKitDialect("").to_updates, trace),
    )


def _judged_by(to_updates: Callable[[Sequence[Message]], list[Update]], trace: Trace) -> Heard:
    return Heard(to_updates(trace.messages), trace.fault)


def _environment(n_threads: int) -> list[str]:
    """Run what follows without looking for models on the network, with so many threads in CTranslate2 and torch."""
    return ["env", "HF_HUB_OFFLINE=1", f"OMP_NUM_THREADS={n_threads}"]
