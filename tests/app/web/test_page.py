"""The page as a whole: how the frame holds it together, and that it asks nobody but its own server."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from playwright.async_api import ConsoleMessage

from app.web import page
from app.web.page import STATIC_ROUTE
from tests.app.browsing import browsing
from tests.app.serving import serving
from tickscribe.messages import ErrorCode

STATIC = page.static_folder()
MODULES = sorted(STATIC.glob("*.js"))
TEXTS = sorted(path for path in STATIC.rglob("*") if path.suffix in {".js", ".html", ".css", ".svg"})

# Named, never fetched: an XML namespace, and the addresses that the examples hold until the browser knows its own.
_HARMLESS = re.compile(r"http://www\.w3\.org/2000/svg|(?:http|ws)://localhost\b|//localhost on the machine")


def make_app() -> FastAPI:
    """The page without a server behind it."""
    app = FastAPI()
    app.mount(STATIC_ROUTE, StaticFiles(directory=STATIC))
    return page.mount(app)


def get(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page.test")


async def test_the_frame_and_its_files_are_served_side_by_side() -> None:
    async with get(make_app()) as client:
        page = await client.get("/")
        assert page.status_code == 200
        assert "<title>tickscribe</title>" in page.text or '"title":"tickscribe"' in page.text
        for path in TEXTS:
            answer = await client.get(f"{STATIC_ROUTE}/{path.relative_to(STATIC)}")
            assert answer.status_code == 200
        script = await client.get(f"{STATIC_ROUTE}/app.js")
        assert "javascript" in script.headers["content-type"]


async def test_no_gradio_event_runs_for_a_viewer() -> None:
    blocks = page.build_page(STATIC)
    assert not blocks.fns
    assert not blocks.analytics_enabled


async def test_routes_added_before_the_page_are_reached() -> None:
    app = FastAPI()
    app.get("/healthz")(lambda: "well")
    async with get(page.mount(app)) as client:
        assert (await client.get("/healthz")).json() == "well"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_files_name_no_other_host(path: Path) -> None:
    text = _HARMLESS.sub("", path.read_text(encoding="utf-8"))
    assert re.findall(r"(?:https?:|wss?:)?//[a-z0-9-]+\.[a-z]+|http://\S+", text) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_import_only_what_is_there(path: Path) -> None:
    imported = re.findall(r'(?:from|import)\s*\(?"([^"]+)"', path.read_text(encoding="utf-8"))
    assert all(name.startswith("./") and (STATIC / name).is_file() for name in imported)


def test_every_part_that_the_code_asks_for_is_on_the_page() -> None:
    parts = set(re.findall(r'data-ref="(\w+)"', (STATIC / "page.html").read_text(encoding="utf-8")))
    code = "".join((STATIC / name).read_text(encoding="utf-8") for name in ("app.js", "panel.js"))
    asked = set(re.findall(r"\brefs\.(\w+)", code))
    assert asked <= parts
    assert len(asked) > 20


def test_every_fault_that_a_speaker_can_meet_is_explained() -> None:
    explained = set(re.findall(r"^  (\w+): \{$", (STATIC / "messages.js").read_text(encoding="utf-8"), re.MULTILINE))
    # The page itself sends none of what these refuse; the server's own sentence is shown for them.
    impossible = {
        ErrorCode.BAD_MESSAGE,
        ErrorCode.AUDIO_FORMAT,
        ErrorCode.WRONG_STATE,
        ErrorCode.TOO_BIG,
        ErrorCode.UNKNOWN_LANGUAGE,
        ErrorCode.BAD_SETTING,
    }
    assert set(ErrorCode) - impossible <= explained


@pytest.mark.browser
async def test_the_browser_asks_only_its_own_server() -> None:
    requests: list[str] = []
    complaints: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            complaints.append(message.text)

    async with serving() as served, browsing() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("websocket", lambda socket: requests.append(socket.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", listen)
        await page.goto(f"http://127.0.0.1:{served.port}/")
        await page.locator("[data-feed=live]").wait_for()
        await page.get_by_role("tab", name="API").click()
        await page.get_by_text("Speak to it from your own code").wait_for()
        assert f"ws://127.0.0.1:{served.port}/v1/stream" in await page.locator(".ts-api pre").first.inner_text()
        await page.get_by_role("tab", name="Transcribe").click()
        await page.locator("[data-ref=record]:enabled").wait_for()

    hosts = {urlsplit(url).netloc for url in requests if not url.startswith(("data:", "blob:"))}
    assert hosts == {f"127.0.0.1:{served.port}"}
    assert any(url.endswith("/v1/stats/stream") for url in requests)
    assert complaints == []
