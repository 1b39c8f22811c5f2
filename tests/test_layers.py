"""The floors of the project, read from the imports: app may use the engine, never the other way round."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The floors of the engine, lowest first: a room may use those below it and itself, never one above or beside it.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"types"}),
    frozenset({"config"}),
    frozenset({"session"}),
    frozenset({"decode", "models"}),
    frozenset({"compute"}),
    frozenset({"core"}),
    frozenset({"worker"}),
)
PURE = ("engine/session", "engine/types.py", "engine/errors.py", "engine/config.py")  # folders whole
IMPURE = {"torch", "asyncio", "threading", "time", "random", "transformers", "queue", "concurrent"}
WEB = {"fastapi", "gradio", "prometheus_client", "starlette", "uvicorn", "uvloop", "websockets"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def top_level(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def environment_reads(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    written = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node not in written:
            name = f"{node.value.id}.{node.attr}"
            if name in ("sys.argv", "os.environ", "os.getenv"):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {name}"


@pytest.mark.parametrize("path", sources("engine"), ids=lambda path: path.stem)
def test_the_engine_knows_neither_app_nor_web(path: Path) -> None:
    assert not top_level(imported(path)) & (WEB | {"app"})


def room(path: Path) -> str:
    """The folder of the engine that a file lies in, or its own name where it lies in none."""
    parts = path.relative_to(ROOT / "engine").parts
    return parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next(height for height, rooms in enumerate(FLOORS) if name in rooms)


def pure_sources() -> list[Path]:
    return [path for path in sources("engine") if any(str(path.relative_to(ROOT)).startswith(name) for name in PURE)]


@pytest.mark.parametrize("path", sources("engine"), ids=str)
def test_every_room_of_the_engine_uses_only_what_lies_below(path: Path) -> None:
    if path == ROOT / "engine/__init__.py":
        return
    own = room(path)
    used = {name.split(".")[1] for name in imported(path) if name.startswith("engine.")}
    assert [name for name in used if name != own and floor(name) >= floor(own)] == []


@pytest.mark.parametrize("path", pure_sources(), ids=str)
def test_the_pure_floor_has_no_tensors_threads_loops_or_clocks(path: Path) -> None:
    assert not top_level(imported(path)) & IMPURE


def test_only_the_command_line_reads_arguments_and_environment() -> None:
    doors = {ROOT / "app/cli/main.py"}
    others = [path for package in ("app", "engine", "tickscribe") for path in sources(package) if path not in doors]
    assert [read for path in others for read in environment_reads(path)] == []


def test_only_the_command_line_sets_logging_up() -> None:
    callers = [path.name for path in sources("app") + sources("engine") if "basicConfig" in path.read_text("utf-8")]
    assert callers == ["main.py"]
