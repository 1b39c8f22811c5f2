"""What a figure was measured on: printed above every table and kept in its JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and the versions that matter."""

    processor: str
    cores: int
    accelerator: str | None
    python: str
    torch: str
    tickscribe: str

    def __str__(self) -> str:
        place = self.accelerator or f"{self.processor}, {self.cores} cores"
        return f"{place}; Python {self.python}, torch {self.torch}, tickscribe {self.tickscribe}"


def describe_machine() -> Machine:
    """Look at the machine that this runs on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        processor=_processor(),
        cores=cores,
        accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        python=platform.python_version(),
        torch=torch.__version__,
        tickscribe=importlib.metadata.version("tickscribe"),
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
