"""A table of figures: printed, kept as JSON, and set into README.

README holds one pair of markers per table, `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`; `tickscribe bench readme`
fills what lies between from `docs/bench/NAME.json`, so that no figure is ever typed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.bench.machine import Machine
from engine.config import EngineConfig

TABLE_WIDTH = 140  # characters that the tables need
_MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench:\2 -->)", flags=re.DOTALL)


@dataclass(frozen=True, slots=True)
class Report:
    """What one benchmark found.

    Attributes:
        title: what the table shows.
        command: repeats it.
        setting: model and anything else that the figures depend on.
        headings, cells: the table as people read it; the first column is text, the others figures.
        rows: the same unrounded, for programs.
    """

    title: str
    command: str
    machine: Machine
    setting: str
    headings: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[dict[str, Any], ...]

    def publish(self, output: Path | None) -> None:
        """Print the table; write it as JSON where a file is named."""
        table = Table(title=self.title)
        for index, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if index else "left", overflow="fold")
        for cells in self.cells:
            table.add_row(*cells)
        console = Console(width=max(TABLE_WIDTH, Console().width))
        console.print(f"{self.machine}\n{self.setting}")
        console.print(table)
        if output:
            output.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def command_line(name: str, given: Iterable[tuple[str, object, object]], rest: Sequence[str] = ()) -> str:
    """Return the command that repeats a table, defaults left out.

    Args:
        name: of the command.
        given: flag, its value and its default each; a flag that may be repeated has a tuple.
        rest: what stands behind two dashes.
    """
    words = [name]
    for flag, value, default in given:
        if value != default:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"{flag} {one:g}" if isinstance(one, float) else f"{flag} {one}" for one in values]
    return " ".join([*words, "--", *rest] if rest else words)


def engine_flags(engine: EngineConfig) -> tuple[tuple[str, object, object], ...]:
    """Flags of the engine for `command_line`."""
    defaults = EngineConfig()
    return (
        ("--model", engine.model, defaults.model),
        ("--device", engine.device, defaults.device),
        ("--dtype", engine.dtype, defaults.dtype),
        ("--context", engine.context, defaults.context),
        ("--branches", engine.n_branches, defaults.n_branches),
        ("--pause-ms", engine.pause_ms, defaults.pause_ms),
    )


def fill_readme(readme: Path, reports: Path) -> list[str]:
    """Set every table of `reports`/NAME.json into its place in README; return the names found there."""
    names: list[str] = []

    def fill(match: re.Match[str]) -> str:
        names.append(match[2])
        report = json.loads((reports / f"{match[2]}.json").read_text(encoding="utf-8"))
        return match[1] + to_markdown(report) + match[3]

    readme.write_text(_MARKED.sub(fill, readme.read_text(encoding="utf-8")), encoding="utf-8")
    return names


def to_markdown(report: dict[str, Any]) -> str:
    """Render a report that was read back from JSON."""
    machine = Machine(**report["machine"])
    lines = [
        f"**{report['title']}**: `{report['command']}`",
        "",
        _line(report["headings"]),
        _line(["---", *["--:"] * (len(report["headings"]) - 1)]),
        *map(_line, report["cells"]),
        "",
        f"{report['setting']}. {machine}.",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
