"""The command line: `tickscribe serve`, `file`, `mic`, `model`, `eval`, `bench`.

Each command reads its flags and calls one function; nothing else in the project looks at the command line. What is
heavy (torch, Gradio, PyAV, PortAudio) is imported inside the commands, so that `--help` answers at once. A fault that
has a name is printed as one sentence and ends with exit code 2; everything else is a bug and shows its traceback.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from app.cli.subtitles import Format
from app.eval.options import Arm, Peer
from engine.config import Context, Device, EncoderMode, EngineConfig, Precision
from engine.errors import EngineError
from engine.types import FILE_PAUSE_MS, SessionSettings, Stability, Task
from tickscribe.messages import ProtocolError, Start

EXIT_BAD_INPUT = 2
DEFAULT_URL = "ws://localhost:7860/v1/stream"
DEFAULT_MANIFEST = Path("tests/audio/manifest.tsv")
_DEFAULTS = EngineConfig()
_SESSION_DEFAULTS = SessionSettings()

cli = typer.Typer(
    name="tickscribe",
    help="Live transcription for many speakers at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
model_cli = typer.Typer(help="The models that can be used.", no_args_is_help=True)
bench_cli = typer.Typer(help="Measure this machine.", no_args_is_help=True)
cli.add_typer(model_cli, name="model")
cli.add_typer(bench_cli, name="bench")


class LogLevel(StrEnum):
    """How much `serve` tells on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Url = Annotated[str, typer.Option(metavar="URL", help="The server's WebSocket.")]
Language = Annotated[str | None, typer.Option(metavar="CODE", help="Such as en; detected when left out.")]
PauseMs = Annotated[int | None, typer.Option(help="Silence that ends an utterance; the server's when left out.")]
MinSpeechMs = Annotated[int, typer.Option(help="Shorter sounds are passed over.")]
Threshold = Annotated[float, typer.Option(help="Probability at which audio counts as speech.")]
MaxUtteranceS = Annotated[float, typer.Option(help="Longer speech is cut between two words.")]
TaskName = Annotated[Task, typer.Option(help="Write what is said, or its English translation (multilingual models).")]
ShownWords = Annotated[
    Stability, typer.Option(help="Show every word at once, only those that will hardly change, or only committed ones.")
]
Prompt = Annotated[str, typer.Option(metavar="TEXT", help="Taken for what was said before: names, subject, style.")]
HotwordList = Annotated[
    list[str] | None, typer.Option("--hotword", metavar="WORD", help="A name or word that is likely; repeatable.")
]
PreviousText = Annotated[bool, typer.Option("--previous-text", help="Give the model the last words said as context.")]
ModelName = Annotated[str, typer.Option(metavar="MODEL", help="Short name, Hugging Face id, or folder.")]
DeviceName = Annotated[Device, typer.Option(help="Where the model runs; auto takes CUDA if there is one.")]
Manifest = Annotated[Path, typer.Option(help="Table of recordings with references.")]
PeersDir = Annotated[Path, typer.Option(help="Where other programs are installed; kept.")]
JsonOutput = Annotated[Path | None, typer.Option("--output", "-o", help="Also write the table as JSON.")]


def main() -> None:
    """Run the command line of this process."""
    cli(prog_name="tickscribe")


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        version = importlib.metadata.version("tickscribe")
    except importlib.metadata.PackageNotFoundError:
        version = "(not installed, run from its sources)"
    typer.echo(f"tickscribe {version}")
    raise typer.Exit


@cli.callback()
def _tickscribe(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Live transcription for many speakers at once."""


@cli.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.")] = "localhost",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page and the WebSocket.")] = 7860,
    model: ModelName = _DEFAULTS.model,
    device: DeviceName = _DEFAULTS.device,
    encoder: Annotated[
        EncoderMode, typer.Option(help="One encoder run per tick, or one per window (to compare).")
    ] = _DEFAULTS.encoder,
    context: Annotated[
        Context, typer.Option(help="Compute only real audio behind a kept silence tail, or pad every window to 30 s.")
    ] = _DEFAULTS.context,
    dtype: Annotated[
        Precision, typer.Option(help="Number format; auto: int8 on an x86 CPU, fp16 on CUDA.")
    ] = _DEFAULTS.dtype,
    freeze_after_s: Annotated[
        float | None,
        typer.Option(
            help="Partials reuse what was encoded with so much audio behind it; 0 never.",
            show_default="by the size of the model",
        ),
    ] = _DEFAULTS.freeze_after_s,
    branches: Annotated[
        int, typer.Option(help="Other texts that a final is weighed against; 0: greedy, which takes less time.")
    ] = _DEFAULTS.n_branches,
    gather_ms: Annotated[
        float, typer.Option(help="How long a tick waits for more audio to share its encoder run.")
    ] = _DEFAULTS.gather_ms,
    slots: Annotated[
        int,
        typer.Option(
            help="Most windows that are decoded at once; 0: as memory allows, up to 32 on a CPU and 256 on a GPU.",
        ),
    ] = _DEFAULTS.n_slots,
    max_sessions: Annotated[int, typer.Option(min=1, help="Most speakers at once; one more is refused.")] = 64,
    pause_ms: Annotated[int, typer.Option(help="Silence that ends an utterance.")] = _DEFAULTS.pause_ms,
    threads: Annotated[int, typer.Option(help="Torch threads; 0 leaves a core to the sockets.")] = _DEFAULTS.n_threads,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(help="Certificate: browsers give a microphone to other machines' pages over https only."),
    ] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Private key of the certificate.")] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Page of another host that may connect; repeatable.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much to tell on stderr.")] = LogLevel.INFO,
) -> None:
    """Serve the page, the WebSocket and the metrics on one port."""
    logging.basicConfig(level=log_level.value.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with _named(EngineError):
        engine = EngineConfig(
            model=model,
            device=device,
            encoder=encoder,
            context=context,
            dtype=dtype,
            freeze_after_s=freeze_after_s,
            n_branches=branches,
            n_slots=slots,
            gather_ms=gather_ms,
            n_threads=threads,
            pause_ms=pause_ms,
        )
        from app.web import server

        server.serve(
            server.ServerConfig(
                engine=engine,
                host=host,
                port=port,
                max_sessions=max_sessions,
                ssl_certfile=ssl_certfile,
                ssl_keyfile=ssl_keyfile,
                allow_origins=tuple(allow_origin or ()),
                log_level=log_level.value,
            )
        )


@cli.command()
def file(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Audio or video of any format.")],
    url: Url = DEFAULT_URL,
    pace: Annotated[float, typer.Option(min=0, help="1 is real time, 2 twice as fast, 0 as fast as taken.")] = 1.0,
    language: Language = None,
    pause_ms: Annotated[int, typer.Option(help="Silence that ends an utterance.")] = FILE_PAUSE_MS,
    min_speech_ms: MinSpeechMs = _SESSION_DEFAULTS.min_speech_ms,
    threshold: Threshold = _SESSION_DEFAULTS.threshold,
    max_utterance_s: MaxUtteranceS = _SESSION_DEFAULTS.max_utterance_s,
    task: TaskName = Task.TRANSCRIBE,
    stability: ShownWords = Stability.BALANCED,
    prompt: Prompt = "",
    hotwords: HotwordList = None,
    previous_text: PreviousText = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File (.txt, .srt, .vtt, .json), or folder for several.")
    ] = None,
    formats: Annotated[
        list[Format] | None, typer.Option("--format", help="Repeatable; without -o it goes to standard output.")
    ] = None,
) -> None:
    """Transcribe recordings through a server, all of them at once."""
    from app.cli.file import FileOptions, OutputError, transcribe_files

    with _named(OutputError):
        start = _checked(
            Start(
                language=language,
                pause_ms=pause_ms,
                min_speech_ms=min_speech_ms,
                threshold=threshold,
                max_utterance_s=max_utterance_s,
                task=task,
                stability=stability,
                prompt=prompt,
                hotwords=tuple(hotwords or ()),
                previous_text=previous_text,
            )
        )
        options = FileOptions(url=url, start=start, pace=pace, output=output, formats=tuple(formats or ()))
        raise typer.Exit(transcribe_files(paths, options))


@cli.command()
def mic(
    source: Annotated[
        str | None, typer.Argument(metavar="[-]", help="A dash reads raw PCM16, 16 kHz, mono from standard input.")
    ] = None,
    url: Url = DEFAULT_URL,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Number or part of the name of an input device.")
    ] = None,
    language: Language = None,
    pause_ms: PauseMs = _SESSION_DEFAULTS.pause_ms,
    min_speech_ms: MinSpeechMs = _SESSION_DEFAULTS.min_speech_ms,
    threshold: Threshold = _SESSION_DEFAULTS.threshold,
    max_utterance_s: MaxUtteranceS = _SESSION_DEFAULTS.max_utterance_s,
    task: TaskName = Task.TRANSCRIBE,
    stability: ShownWords = Stability.BALANCED,
    prompt: Prompt = "",
    hotwords: HotwordList = None,
    previous_text: PreviousText = False,
    list_devices: Annotated[bool, typer.Option("--list-devices", help="Show the input devices.")] = False,
) -> None:
    """Transcribe the microphone of this machine through a server; Ctrl-C ends."""
    from app.cli import mic as mic_command
    from tickscribe.client import ClientError

    if source not in (None, mic_command.STDIN):
        _refuse(f"mic does not read {source}; it takes - for standard input, and `tickscribe file` takes files.")
    with _named(mic_command.MicrophoneError, ClientError):
        if list_devices:
            mic_command.list_devices()
        else:
            start = _checked(
                Start(
                    language=language,
                    pause_ms=pause_ms,
                    min_speech_ms=min_speech_ms,
                    threshold=threshold,
                    max_utterance_s=max_utterance_s,
                    task=task,
                    stability=stability,
                    prompt=prompt,
                    hotwords=tuple(hotwords or ()),
                    previous_text=previous_text,
                )
            )
            mic_command.listen(mic_command.MicOptions(url=url, start=start, device=source or device))


@model_cli.command("list")
def model_list() -> None:
    """Show the models: name, size, where from, present or not."""
    from engine.models import registry

    table = Table("model", "parameters", "on disk", "where", box=None)
    for listed in registry.list_models():
        size = f"{listed.found.size_bytes / 1e6:.0f} MB" if listed.found else "-"
        where = listed.found.source.value if listed.found else "not on this machine"
        table.add_row(listed.name, f"{listed.n_parameters / 1e6:.0f} M", size, where)
    Console(highlight=False).print(table)


@cli.command("eval")
def evaluate(
    model: ModelName = _DEFAULTS.model,
    device: DeviceName = _DEFAULTS.device,
    manifest: Manifest = DEFAULT_MANIFEST,
    arms: Annotated[
        list[Arm] | None,
        typer.Option(
            "--arm",
            help="Run only this; repeatable. stepped: live, but without a clock. full-pad: offline, fp32, greedy.",
        ),
    ] = None,
    peer: Annotated[Peer | None, typer.Option(help="Also run this program offline with the same weights.")] = None,
    kinds: Annotated[list[str] | None, typer.Option("--kind", help="Take only clips of this kind; repeatable.")] = None,
    languages: Annotated[
        list[str] | None, typer.Option("--language", metavar="CODE", help="Take only this language; repeatable.")
    ] = None,
    pace: Annotated[float, typer.Option(min=0.1, help="Speed of streaming; 1 is real time.")] = 1.0,
    streams: Annotated[int, typer.Option(min=1, help="How many speak at once.")] = 4,
    starts: Annotated[
        int,
        typer.Option(min=1, help="How often each recording is heard, 20 ms later each time: rounding moves errors."),
    ] = 1,
    stabilities: Annotated[
        list[Stability] | None,
        typer.Option(
            "--stability", help="What partials of streamed and stepped show; repeatable.  [default: balanced]"
        ),
    ] = None,
    dtype: Annotated[Precision, typer.Option(help="Number format of all but full-pad.")] = _DEFAULTS.dtype,
    context: Annotated[Context, typer.Option(help="Context of all but full-pad.")] = _DEFAULTS.context,
    branches: Annotated[
        int, typer.Option(help="Other texts that a final is weighed against, in all but full-pad.")
    ] = _DEFAULTS.n_branches,
    pause_ms: Annotated[
        int, typer.Option(help="Silence that ends an utterance of streamed and stepped.")
    ] = _DEFAULTS.pause_ms,
    file_pause_ms: Annotated[
        int, typer.Option(help="Silence that ends an utterance of offline and full-pad.")
    ] = FILE_PAUSE_MS,
    peers_dir: PeersDir = Path(".peers"),
    output: JsonOutput = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with charts and all texts.")] = None,
) -> None:
    """Judge the text, offline and live: errors, invented words, delays, revisions, word times."""
    from app.audio.media import MediaError
    from app.bench.clips import ClipError
    from app.bench.peer_environment import PeerUnavailable
    from app.bench.process import ServerFailed
    from app.eval import evaluate as evaluation
    from app.eval.options import Options

    with _named(EngineError, ClipError, MediaError, ServerFailed, PeerUnavailable):
        options = Options(
            engine=EngineConfig(
                model=model, device=device, dtype=dtype, context=context, n_branches=branches, pause_ms=pause_ms
            ),
            manifest=manifest,
            arms=tuple(arms or Arm),
            peer=peer,
            peers_dir=peers_dir,
            kinds=tuple(kinds or ()),
            languages=tuple(languages or ()),
            pace=pace,
            n_streams=streams,
            n_starts=starts,
            stabilities=tuple(stabilities or (Stability.BALANCED,)),
            file_pause_ms=file_pause_ms,
        )
        evaluation.run(options, output=output, page=html)


@bench_cli.command("encoder")
def bench_encoder(
    model: ModelName = _DEFAULTS.model,
    device: DeviceName = _DEFAULTS.device,
    manifest: Manifest = DEFAULT_MANIFEST,
    requests: Annotated[int, typer.Option(min=1, help="Windows to transcribe per round.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds per row of the table; the median is shown.")] = 2,
    output: JsonOutput = None,
) -> None:
    """Compare one encoder run per tick with one per window, at 1, 4, 16 and 64 at once."""
    from app.audio.media import MediaError
    from app.bench import encoder as bench
    from app.bench.clips import ClipError

    with _named(EngineError, ClipError, MediaError):
        config = EngineConfig(model=model, device=device)
        bench.run(config, manifest=manifest, n_requests=requests, n_rounds=rounds, output=output)


@bench_cli.command("stream")
def bench_stream(
    model: ModelName = _DEFAULTS.model,
    device: DeviceName = _DEFAULTS.device,
    manifest: Manifest = DEFAULT_MANIFEST,
    freeze_after_s: Annotated[
        list[float] | None, typer.Option(help="Compare these, in place of one saving after the other; repeatable.")
    ] = None,
    output: JsonOutput = None,
) -> None:
    """Stream recordings through the engine and count what each of its savings saves."""
    from app.audio.media import MediaError
    from app.bench import stream as bench
    from app.bench.clips import ClipError

    with _named(EngineError, ClipError, MediaError):
        config = EngineConfig(model=model, device=device)
        bench.run(config, manifest=manifest, freeze_after_s=freeze_after_s or (), output=output)


@bench_cli.command("engine")
def bench_engine(
    model: ModelName = _DEFAULTS.model,
    device: DeviceName = _DEFAULTS.device,
    seconds: Annotated[list[float] | None, typer.Option(help="Audio in a window; repeatable.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Windows in one encoder run; repeatable.")] = None,
    decode_batch: Annotated[list[int] | None, typer.Option(min=1, help="Rows of a decode step; repeatable.")] = None,
    dtype: Annotated[list[Precision] | None, typer.Option(help="Number formats; repeatable.")] = None,
    encoder_output: Annotated[Path | None, typer.Option(help="Also write the encoder's table as JSON.")] = None,
    decoder_output: Annotated[Path | None, typer.Option(help="Also write the decoder's table as JSON.")] = None,
    peers_dir: Annotated[
        Path | None, typer.Option(help="Compare with CTranslate2's encoder, installed with faster-whisper in here.")
    ] = None,
) -> None:
    """Time encoder and decoder by themselves, beside the floor that this machine allows."""
    from app.bench import engine as bench
    from app.bench.peer_environment import PeerUnavailable

    with _named(EngineError, PeerUnavailable):
        config = EngineConfig(model=model, device=device)
        default = bench.Grid()
        grid = bench.Grid(
            tuple(seconds or default.seconds),
            tuple(batch or default.batches),
            tuple(decode_batch or default.decode_batches),
            tuple(dtype or default.dtypes),
        )
        bench.run(config, grid, encoder_output=encoder_output, decoder_output=decoder_output, peers_dir=peers_dir)


@bench_cli.command("readme")
def bench_readme(
    readme: Annotated[Path, typer.Option(help="The file with the marked places.")] = Path("README.md"),
    reports: Annotated[Path, typer.Option(help="Folder of the tables' JSON.")] = Path("docs/bench"),
) -> None:
    """Set the tables that `bench ... -o docs/bench/NAME.json` wrote into README."""
    from app.bench.report import fill_readme

    for name in fill_readme(readme, reports):
        typer.echo(f"{readme}: {name}")


@bench_cli.command("capacity")
def bench_capacity(
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS...]", help="Further flags of serve, behind two dashes.")
    ] = None,
    model: ModelName = _DEFAULTS.model,
    stability: ShownWords = Stability.FAST,
    device: DeviceName = _DEFAULTS.device,
    pause_ms: Annotated[int, typer.Option(help="Silence that ends an utterance.")] = _DEFAULTS.pause_ms,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="A server that runs already; without, one is started.")
    ] = None,
    streams: Annotated[
        list[int] | None, typer.Option(min=1, help="Measure this many; repeatable. Without, search the most.")
    ] = None,
    max_streams: Annotated[int, typer.Option(min=1, help="The search goes no further.")] = 256,
    duration_s: Annotated[float, typer.Option(min=8, help="How long each speaker goes on.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Of order, pauses and offsets.")] = 1,
    manifest: Annotated[Path, typer.Option(help="Table of recordings with references.")] = DEFAULT_MANIFEST,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write all figures as JSON.")] = None,
) -> None:
    """Find how many live speakers a server serves in time."""
    from app.audio.media import MediaError
    from app.bench import capacity as bench
    from app.bench.clips import ClipError
    from app.bench.process import ServerFailed

    with _named(EngineError, ClipError, MediaError, ServerFailed):
        options = bench.Options(
            engine=EngineConfig(model=model, device=device, pause_ms=pause_ms),
            manifest=manifest,
            flags=tuple(flags or ()),
            stability=stability,
            url=url,
            n_streams=tuple(streams or ()),
            max_streams=max_streams,
            duration_s=duration_s,
            seed=seed,
        )
        bench.run(options, output=output)


@bench_cli.command("memory")
def bench_memory(
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS...]", help="Further flags of serve, behind two dashes.")
    ] = None,
    model: ModelName = _DEFAULTS.model,
    cycles: Annotated[
        list[int] | None, typer.Option(min=1, help="When to read the memory; repeatable. [default: 50 500]")
    ] = None,
    manifest: Manifest = DEFAULT_MANIFEST,
    output: JsonOutput = None,
) -> None:
    """Let speakers come and go, and watch the server's memory."""
    from app.audio.media import MediaError
    from app.bench import memory as bench
    from app.bench.clips import ClipError
    from app.bench.process import ServerFailed
    from tickscribe.client import ClientError

    with _named(ClipError, ClientError, MediaError, ServerFailed):
        bench.run(model, manifest=manifest, n_cycles=cycles or (50, 500), flags=flags or (), output=output)


@bench_cli.command("peers")
def bench_peers(
    flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- FLAGS...]", help="Further flags of serve, behind two dashes.")
    ] = None,
    model: ModelName = _DEFAULTS.model,
    pause_ms: Annotated[int, typer.Option(help="Silence that ends an utterance.")] = _DEFAULTS.pause_ms,
    streams: Annotated[
        list[int] | None, typer.Option(min=1, help="How many speakers at once; repeatable. [default: 1 2 4 8]")
    ] = None,
    peer_threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Threads of the others; repeatable. [default: 1 and one per core]")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Take only servers with this in their name; repeatable.")
    ] = None,
    duration_s: Annotated[float, typer.Option(min=8, help="How long each speaker goes on.")] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 2,
    file_minutes: Annotated[float, typer.Option(min=0, help="Audio for the files; 0 leaves them out.")] = 30.0,
    peers_dir: PeersDir = Path(".peers"),
    torch_index: Annotated[
        str | None, typer.Option(metavar="URL", help="Package index with a CPU build of torch, which some need.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of order, pauses and offsets.")] = 1,
    manifest: Annotated[Path, typer.Option(help="Table of recordings with references.")] = DEFAULT_MANIFEST,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the live table as JSON.")] = None,
    files_output: Annotated[Path | None, typer.Option(help="Also write the table of the files as JSON.")] = None,
) -> None:
    """Compare with whisper-live, whisperlivekit and faster-whisper, installed from PyPI, on the CPU."""
    from app.audio.media import MediaError
    from app.bench import peers as bench
    from app.bench.clips import ClipError
    from app.bench.peer_environment import PeerUnavailable
    from app.bench.process import ServerFailed

    with _named(EngineError, ClipError, MediaError, ServerFailed, PeerUnavailable):
        options = bench.Options(
            engine=EngineConfig(model=model, device=Device.CPU, pause_ms=pause_ms),
            manifest=manifest,
            peers_dir=peers_dir,
            flags=tuple(flags or ()),
            torch_index=torch_index,
            peer_threads=tuple(peer_threads or sorted({1, os.cpu_count() or 1})),
            streams=tuple(streams or (1, 2, 4, 8)),
            only=tuple(only or ()),
            duration_s=duration_s,
            n_rounds=rounds,
            file_minutes=file_minutes,
            seed=seed,
        )
        bench.run(options, output=output, files_output=files_output)


@contextmanager
def _named(*errors: type[Exception]) -> Iterator[None]:
    """Print these errors as one sentence and exit with code 2."""
    try:
        yield
    except errors as error:
        _refuse(str(error))


def _checked(start: Start) -> Start:
    """Refuse settings out of their range before anything is opened."""
    with _named(ProtocolError):
        _ = start.settings
    return start


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(EXIT_BAD_INPUT)
