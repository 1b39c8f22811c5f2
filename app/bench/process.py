"""A server under test as a process of its own: started, awaited, watched through /proc, stopped."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

READY_TIMEOUT_S = 120.0
_RETRY_S = 0.2  # a foreign server announces nothing, so it is asked
_STOP_TIMEOUT_S = 15.0
_LOG_LINES = 12


class ServerFailed(Exception):
    """A server did not come up; the message ends with the last lines it wrote."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server.

    Attributes:
        pid: of the process.
        log: all that it writes.
    """

    pid: int
    log: Path


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Processor seconds used so far."""

    at_s: float
    server_s: float
    machine_s: float

    def since(self, before: CpuTimes) -> CpuUse:
        """Mean use since `before`."""
        wall_s = max(1e-9, self.at_s - before.at_s)
        server = (self.server_s - before.server_s) / wall_s
        return CpuUse(100 * server, 100 * ((self.machine_s - before.machine_s) / wall_s - server))


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Percent of one core: of the server, and of everything else, the load generator included."""

    server_percent: float
    others_percent: float


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running(command: Sequence[str], *, log: Path, ready_url: str) -> Iterator[ServerProcess]:
    """Run a server until the block ends.

    Args:
        command: program and arguments.
        log: file for what it writes.
        ready_url: an http address that answers 200, or a tcp://host:port that accepts, once it is ready.

    Raises:
        ServerFailed: it ended, or was not ready within READY_TIMEOUT_S.
    """
    with log.open("wb") as sink:
        process = _start(command, sink)
        try:
            _await_ready(process, ready_url, log)
            yield ServerProcess(process.pid, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(command: Sequence[str], sink: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
    except OSError as error:
        raise ServerFailed(f"{command[0]} could not be started: {error}.") from error


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not _answers(url):
        if process.poll() is not None:
            raise ServerFailed(f"The server ended with code {process.returncode}:\n{last_lines(log)}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"The server was not ready within {READY_TIMEOUT_S:.0f} s:\n{last_lines(log)}")
        time.sleep(_RETRY_S)


def _answers(url: str) -> bool:
    try:
        if url.startswith("tcp://"):
            host, _, port = url.removeprefix("tcp://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=1).close()
            return True
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def last_lines(log: Path) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])


def cpu_times(pid: int | None) -> CpuTimes | None:
    """Processor time of a process and of the whole machine; None where there is no /proc, or no such process."""
    try:
        # After the name in brackets: state is field 3 of the line, utime and stime are 14 and 15 (man 5 proc).
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        machine = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, soft_irq = (int(ticks) for ticks in machine[:7])
    per_s = os.sysconf("SC_CLK_TCK")
    return CpuTimes(
        time.monotonic(),
        (int(fields[11]) + int(fields[12])) / per_s,
        (user + nice + system + irq + soft_irq) / per_s,
    )


def peak_memory_mb(pid: int | None) -> float | None:
    """Most resident memory of a process so far; None where it cannot be told."""
    return _status_mb(pid, "VmHWM:")


def resident_memory_mb(pid: int | None) -> float | None:
    """Resident memory of a process now; None where it cannot be told."""
    return _status_mb(pid, "VmRSS:")


def _status_mb(pid: int | None, field: str) -> float | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), None)
