"""Recordings as fast as they are taken: `tickscribe file --pace 0` against faster-whisper on the same audio."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.bench.peer_environment import FASTER_WHISPER, PeerUnavailable, Weights, install
from app.bench.process import free_port, running
from app.bench.scoring import word_error_rate
from app.bench.streams import Stream
from engine.types import SAMPLE_RATE, Samples
from tickscribe.client import pcm16
from tickscribe.command import console_script

_TIMEOUT_S = 3600.0

# Model, settings and files, then one JSON object: seconds without loading the model, and the texts.
_FASTER_WHISPER = """
import json, sys, time
from faster_whisper import BatchedInferencePipeline, WhisperModel
model_path, batch_size, n_threads, language, *paths = sys.argv[1:]
model = WhisperModel(model_path, device="cpu", compute_type="int8", cpu_threads=int(n_threads))
settings = dict(beam_size=1, temperature=0.0, vad_filter=True, condition_on_previous_text=False)
settings["language"] = language or None
if int(batch_size):
    pipeline = BatchedInferencePipeline(model)
    transcribe = lambda path: pipeline.transcribe(path, batch_size=int(batch_size), **settings)
else:
    transcribe = lambda path: model.transcribe(path, **settings)
begin = time.perf_counter()
texts = [" ".join(segment.text for segment in transcribe(path)[0]) for path in paths]
print(json.dumps({"seconds": time.perf_counter() - begin, "texts": texts}))
"""


# Model, threads and numbers of mel frames, then one JSON list: least milliseconds to encode one window of so many.
_CTRANSLATE2 = """
import json, sys, time
import ctranslate2, numpy as np
model_path, n_threads, n_mels, *lengths = sys.argv[1:]
model = ctranslate2.models.Whisper(model_path, device="cpu", compute_type="int8", intra_threads=int(n_threads))
def least_ms(n_frames):
    noise = np.random.default_rng(0).standard_normal((1, int(n_mels), n_frames)).astype(np.float32)
    features = ctranslate2.StorageView.from_array(noise)
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        model.encode(features, to_cpu=True)
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)
print(json.dumps([least_ms(int(length)) for length in lengths]))
"""


@dataclass(frozen=True, slots=True)
class FileResult:
    """One arm, once.

    Attributes:
        rtf: seconds of work per second of audio.
        wer: pooled.
    """

    name: str
    seconds: float
    rtf: float
    wer: float


Transcriber = Callable[[Sequence[Path]], tuple[float, list[str]]]  # files to seconds and texts


def measure_files(
    streams: Sequence[Stream], transcribers: Sequence[tuple[str, Transcriber]], *, n_rounds: int
) -> list[FileResult]:
    """Let every arm transcribe the same files, in turns."""
    audio_s = sum(len(stream.audio) for stream in streams) / SAMPLE_RATE
    references = [stream.reference for stream in streams]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        paths = [write_wav(stream.audio, Path(folder) / f"{number:03}.wav") for number, stream in enumerate(streams)]
        for index in range(n_rounds):
            for name, transcribe in transcribers[:: 1 if index % 2 == 0 else -1]:
                seconds, texts = transcribe(paths)
                wer = word_error_rate(references, texts)
                results.append(FileResult(name, seconds, seconds / audio_s, wer))
    return results


def our_transcriber(model: str, flags: Sequence[str]) -> Transcriber:
    """The command `tickscribe file --pace 0` on a running server; the time is the command's own, from start to exit."""

    def transcribe(paths: Sequence[Path]) -> tuple[float, list[str]]:
        port = free_port()
        serve = [console_script(), "serve", "--host", "127.0.0.1", "--port", str(port)]
        serve += ["--model", model, "--device", "cpu", "--log-level", "warning", "--max-sessions", "1000", *flags]
        with tempfile.TemporaryDirectory() as folder:
            log, output = Path(folder) / "server.log", Path(folder) / "texts"
            with running(serve, log=log, ready_url=f"http://127.0.0.1:{port}/readyz"):
                command = [console_script(), "file", *map(str, paths), "--pace", "0", "--language", "en"]
                command += ["--url", f"ws://127.0.0.1:{port}/v1/stream", "--output", str(output), "--format", "txt"]
                begin = time.perf_counter()
                _output(command)
                seconds = time.perf_counter() - begin
            return seconds, [(output / f"{path.stem}.txt").read_text(encoding="utf-8") for path in paths]

    return transcribe


def faster_whisper_transcriber(
    folder: Path,
    ctranslate2: Path,
    *,
    batch_size: int,
    n_threads: int,
    language: str | None = "en",
    torch_index: str | None = None,
) -> Transcriber:
    """faster-whisper in int8: its batched pipeline, or with batch size 0 one window after the other.

    Args:
        folder: where its environment is, or is made.
        ctranslate2: folder of the model.
        language: None detects it.

    Raises:
        PeerUnavailable: it cannot be installed.
    """
    python = install(FASTER_WHISPER, folder, torch_index=torch_index)

    def transcribe(paths: Sequence[Path]) -> tuple[float, list[str]]:
        command = ["env", "HF_HUB_OFFLINE=1", str(python), "-c", _FASTER_WHISPER, str(ctranslate2)]
        command += [str(batch_size), str(n_threads), language or ""]
        answer = json.loads(_output([*command, *map(str, paths)]).splitlines()[-1])
        return answer["seconds"], answer["texts"]

    return transcribe


def ctranslate2_encoder_ms(
    folder: Path, weights: Weights, *, n_frames: Sequence[int], n_mels: int, n_threads: int
) -> list[float]:
    """Time the encoder that faster-whisper runs, in int8, on windows cut to so many mel frames, features given.

    Raises:
        PeerUnavailable: it cannot be installed, or does not run.
    """
    python = install(FASTER_WHISPER, folder, torch_index=None)
    command = [str(python), "-c", _CTRANSLATE2, str(weights.ctranslate2), str(n_threads), str(n_mels)]
    times: list[float] = json.loads(_output([*command, *map(str, n_frames)]).splitlines()[-1])
    return times


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(str(error)) from error
    if done.returncode:
        raise PeerUnavailable("\n".join(done.stderr.splitlines()[-6:]))
    return done.stdout


def write_wav(audio: Samples, path: Path) -> Path:
    """Write (n,) float32 mono 16 kHz samples as 16-bit integers."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(np.dtype("<i2").itemsize)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(pcm16(audio))
    return path
