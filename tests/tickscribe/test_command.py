"""The console script says what is wrong where another package stands in the place of ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tickscribe.command import console_script, find_shadow


def test_nothing_hides_the_packages_of_this_installation() -> None:
    assert find_shadow() is None


def test_a_foreign_package_of_the_same_name_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("", encoding="utf-8")
    done = subprocess.run(
        [console_script(), "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert f"Another package named 'engine' ({tmp_path}/engine/__init__.py) hides tickscribe's own." in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_package_is_told_in_a_sentence(tmp_path: Path) -> None:
    assert "hides tickscribe's own" in (find_shadow(tmp_path) or "")
