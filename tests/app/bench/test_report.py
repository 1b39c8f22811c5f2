"""A table is printed, kept, and set into its place; figures are never typed."""

from __future__ import annotations

from pathlib import Path

from app.bench.machine import Machine
from app.bench.report import Report, fill_readme

REPORT = Report(
    title="Speed",
    command="tickscribe bench speed",
    machine=Machine("a processor", 2, None, "3.11", "2.13", "0.1"),
    setting="tiny.en",
    headings=("arm", "ms"),
    cells=(("slow", "10"), ("fast", "1")),
    rows=({"arm": "slow", "ms": 10.04}, {"arm": "fast", "ms": 1.01}),
)
FILLED = """before
<!-- bench:speed -->
**Speed**: `tickscribe bench speed`

| arm | ms |
| --- | --: |
| slow | 10 |
| fast | 1 |

tiny.en. a processor, 2 cores; Python 3.11, torch 2.13, tickscribe 0.1.
<!-- /bench:speed -->
after
"""


def test_a_table_is_set_between_its_markers_and_nothing_else_changes(tmp_path: Path) -> None:
    REPORT.publish(tmp_path / "speed.json")
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench:speed -->\nold\n<!-- /bench:speed -->\nafter\n")
    for _ in range(2):  # the second time over its own work
        assert fill_readme(readme, tmp_path) == ["speed"]
        assert readme.read_text() == FILLED
