"""The console script `tickscribe`: finds this project's own `app` and `engine`, and hands over to the command line."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

_EXIT_BROKEN = 2
_HOME = Path(__file__).resolve().parents[1]  # where `app`, `engine` and `tickscribe` lie side by side


def main() -> None:
    """Run the command line of this process."""
    shadow = find_shadow()
    if shadow is not None:
        print(shadow, file=sys.stderr)  # noqa: T201
        sys.exit(_EXIT_BROKEN)
    from app.cli import cli

    cli(prog_name="tickscribe")


def find_shadow(home: Path = _HOME) -> str | None:
    """Return a sentence that names a foreign package in the place of ours; None where there is none."""
    for name in ("app", "engine"):
        found = importlib.util.find_spec(name)
        places = [] if found is None else [Path(place).resolve() for place in found.submodule_search_locations or ()]
        if home / name in places:
            continue
        where = found.origin or ", ".join(map(str, places)) if found else None
        if where is None:
            return f"tickscribe's package '{name}' is missing beside {home / 'tickscribe'}; install tickscribe again."
        return (
            f"Another package named '{name}' ({where}) hides tickscribe's own. Take its folder out of PYTHONPATH, or "
            "install tickscribe into an environment of its own."
        )
    return None


def console_script() -> str:
    """Return the path of the command `tickscribe` of this environment, for who starts it as a process."""
    return str(Path(sysconfig.get_path("scripts")) / "tickscribe")
