"""The page in a real Chromium: speech in, words out, and a sentence that helps for every fault on the way."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.async_api import Page, WebSocket, expect

from engine.types import SAMPLE_RATE
from tests.app.browsing import browsing, open_page, transcript, write_microphone
from tests.app.serving import FINISH, START, hear_until, serving
from tests.conftest import AUDIO, Clip, LoadClip
from tests.fakes import ScriptedEngine
from tickscribe.command import console_script

pytestmark = pytest.mark.browser

CLIP = "utterance/ls-1089-134691-0001.flac"
LOAD_S = 60.0  # for the real model on a busy machine
SPEECH_MS = 60_000.0  # for the real model to say what it heard


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    """Three seconds in which the scripted engine hears three words."""
    time_s = np.arange(3 * SAMPLE_RATE, dtype=np.float32) / SAMPLE_RATE
    return write_microphone(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * 440 * time_s).astype(np.float32))


@asynccontextmanager
async def real_server() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The command with the real model, as a process of its own: its address and itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    process = await asyncio.create_subprocess_exec(
        console_script(), "serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"
    )
    try:
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_loaded(url: str) -> None:
    """Wait for the real model."""
    async with asyncio.timeout(LOAD_S), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        while True:
            try:
                if (await client.get("readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # nobody listens yet
            await asyncio.sleep(0.2)


def address(port: int) -> str:
    return f"http://127.0.0.1:{port}/"


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


async def picture(page: Page, chart: str) -> str:
    """What a chart shows now."""
    shown: str = await page.locator(f"canvas[data-chart={chart}]").evaluate("canvas => canvas.toDataURL()")
    return shown


@pytest.mark.timeout(300)
async def test_speech_shows_on_the_page_and_survives_a_lost_server(
    tmp_path: Path, audio_manifest: tuple[Clip, ...], load_clip: LoadClip
) -> None:
    """The whole path with the real model; then the server is killed in the middle of it."""
    expected = words(next(clip.reference for clip in audio_manifest if clip.path == AUDIO / CLIP))
    microphone = write_microphone(tmp_path / "speech.wav", load_clip(CLIP))
    async with real_server() as (url, process), browsing(microphone) as browser:
        await until_loaded(url)
        page = await open_page(browser, url)
        await expect(page.locator(".ts-model")).to_contain_text("tiny.en")
        await expect(page.locator("[data-ref=languageField]")).to_be_hidden()  # nothing to choose
        still = {chart: await picture(page, chart) for chart in ("batch", "time", "latency")}

        await page.locator("[data-ref=record]").click()
        await expect(page.locator("[data-ref=sessions]")).to_have_text("1")
        await expect(page.locator(".ts-line:not([data-open])")).not_to_have_count(0, timeout=SPEECH_MS)
        heard = words(await transcript(page))
        found = [word for word in expected if word in heard]
        assert len(found) >= 0.75 * len(expected), heard

        await expect(page.locator("[data-ref=batch]")).to_have_text("1")
        moving = {chart: await picture(page, chart) for chart in still}
        assert all(moving[chart] != still[chart] for chart in still)
        # Time runs on although nothing new is said.
        await page.wait_for_function(
            "was => document.querySelector('[data-chart=batch]').toDataURL() !== was", arg=moving["batch"]
        )
        await expect(page.locator("[data-ref=batchSummary]")).to_contain_text("shared by 1 to 1 voices")

        process.kill()
        await expect(page.get_by_role("alert")).to_contain_text("The connection to the server was lost.")
        await expect(page.get_by_role("button", name="Reconnect")).to_be_visible()
        await expect(page.locator("[data-ref=feed]")).to_have_text("No connection")
        assert set(found) <= set(words(await transcript(page)))


async def test_words_come_while_speaking_and_stop_answers_the_rest(tone: Path) -> None:
    async with serving() as served, browsing(tone) as browser:
        page = await open_page(browser, address(served.port))
        await expect(page.get_by_text("Say something.")).to_be_visible()
        await page.locator("[data-ref=record]").press("Space")
        await expect(page.locator("[data-ref=recordLabel]")).to_have_text("Stop")
        await expect(page.locator(".ts-line .ts-tentative").first).not_to_be_empty()
        await expect(page.get_by_text("Say something.")).to_be_hidden()
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("[data-state=idle]")).to_be_attached()
        assert await page.locator(".ts-line[data-open]").count() == 0
        assert re.fullmatch(r"(a\d+ ?)+", await transcript(page))
        # Spoken by a screen reader: the final, and only that.
        await expect(page.locator("[data-ref=announcer]")).to_have_text(await transcript(page))


async def test_the_transcript_is_downloaded_as_subtitles(tone: Path, tmp_path: Path) -> None:
    async with serving() as served, browsing(tone) as browser:
        page = await open_page(browser, address(served.port))
        await page.locator("[data-ref=record]").click()
        await expect(page.locator(".ts-line:not([data-open])")).not_to_have_count(0)
        async with page.expect_download() as download:
            await page.locator("[data-ref=srt]").click()
        file = await download.value
        assert file.suggested_filename == "transcript.srt"
        await file.save_as(tmp_path / "saved.srt")
    assert (tmp_path / "saved.srt").read_text(encoding="utf-8").startswith("1\n00:00:0")


async def test_the_language_is_offered_and_sent(tone: Path) -> None:
    starts: list[dict[str, object]] = []

    def listen(sock: WebSocket) -> None:
        sock.on("framesent", lambda data: starts.append(json.loads(data)) if isinstance(data, str) else None)

    async with serving() as served, browsing(tone) as browser:
        page = await open_page(browser, address(served.port))
        page.on("websocket", listen)
        await page.get_by_label("Language").select_option(label="German")
        await page.locator("[data-ref=record]").click()
        await expect(page.locator("[data-state=live]")).to_be_attached()
    assert starts == [
        {"type": "start", "format": "pcm16", "channels": 1, "sample_rate": 16000, "language": "de", "interim": True}
    ]


async def test_a_browser_that_does_not_resample_sends_its_own_rate(tone: Path) -> None:
    """Firefox refuses to connect a microphone to a context of another rate."""
    refuse = """
        const create = AudioContext.prototype.createMediaStreamSource;
        AudioContext.prototype.createMediaStreamSource = function (stream) {
          if (this.sampleRate === 16000) throw new DOMException("different sample-rate", "NotSupportedError");
          return create.call(this, stream);
        };
    """
    async with serving() as served, browsing(tone) as browser:
        context = await browser.new_context()
        await context.add_init_script(refuse)
        page = await context.new_page()
        sent: list[str] = []
        page.on("websocket", lambda sock: sock.on("framesent", lambda data: sent.append(str(data))))
        await page.goto(address(served.port))
        await page.locator("[data-ref=record]:enabled").click()
        await expect(page.locator(".ts-line").first).to_contain_text("a")
    assert json.loads(sent[0])["sample_rate"] in {44_100, 48_000}


async def test_a_refused_microphone_is_explained() -> None:
    async with serving() as served, browsing(is_allowed=False) as browser:
        page = await open_page(browser, address(served.port))
        await page.locator("[data-ref=record]").click()
        await expect(page.get_by_role("alert")).to_contain_text("The microphone is blocked for this page.")
        await expect(page.locator("[data-state=idle]")).to_be_attached()


async def test_a_missing_microphone_is_explained() -> None:
    async with serving() as served, browsing(is_present=False) as browser:
        page = await open_page(browser, address(served.port))
        await page.locator("[data-ref=record]").click()
        await expect(page.get_by_role("alert")).to_contain_text("No microphone was found.")


async def test_a_page_without_https_says_how_to_get_a_microphone() -> None:
    async with (
        serving() as served,
        browsing(flags=["--host-resolver-rules=MAP lan.test 127.0.0.1"]) as browser,
    ):
        page = await open_page(browser, f"http://lan.test:{served.port}/")
        await expect(page.get_by_role("alert")).to_contain_text("--ssl-certfile")
        await expect(page.get_by_role("alert")).to_contain_text("http://localhost")


async def test_a_full_server_is_explained_and_tried_again(tone: Path) -> None:
    async with serving(max_sessions=1) as served, browsing(tone) as browser:
        page = await open_page(browser, address(served.port))
        async with served.connect() as other:
            await other.send(START)
            await hear_until(other, "ready")
            await page.locator("[data-ref=record]").click()
            await expect(page.get_by_role("alert")).to_contain_text("The server is full.")
            await other.send(FINISH)
            await other.wait_closed()
        await expect(page.locator("[data-ref=sessions]")).to_have_text("No")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator("[data-state=live]")).to_be_attached()
        await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_server_that_loads_is_told_from_one_that_is_gone(tone: Path) -> None:
    loaded = asyncio.Event()
    loop = asyncio.get_running_loop()

    def load(_: object) -> ScriptedEngine:
        asyncio.run_coroutine_threadsafe(loaded.wait(), loop).result()
        return ScriptedEngine()

    async with serving(factory=load) as served, browsing(tone) as browser:
        page = await open_page(browser, address(served.port))
        await expect(page.locator("[data-ref=feed]")).to_have_text("Loading the model")
        await page.locator("[data-ref=record]").click()
        await expect(page.get_by_role("alert")).to_contain_text("The server is still loading its model.")
        loaded.set()
        await expect(page.locator("[data-ref=feed]")).to_have_text("Connected")
        await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_network_that_goes_away_is_noticed_at_once(tone: Path) -> None:
    async with serving() as served, browsing(tone) as browser:
        page = await open_page(browser, address(served.port))
        await page.locator("[data-ref=record]").click()
        await expect(page.locator(".ts-line").first).to_contain_text("a")
        await page.context.set_offline(True)
        await expect(page.get_by_role("alert")).to_contain_text("The connection to the server was lost.")
        await page.context.set_offline(False)
        await page.get_by_role("button", name="Reconnect").click()
        await expect(page.locator("[data-state=live]")).to_be_attached()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_a_phone(tone: Path, scheme: str) -> None:
    async with serving() as served, browsing(tone) as browser:
        page = await open_page(
            browser, address(served.port), viewport={"width": 360, "height": 640}, color_scheme=scheme
        )
        width = "document.documentElement.scrollWidth"
        assert await page.evaluate(width) == 360
        await expect(page.locator("[data-ref=record]")).to_be_in_viewport(ratio=1)
        ground = await page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
        assert ground == {"light": "rgb(246, 245, 241)", "dark": "rgb(20, 19, 16)"}[scheme]
        await page.get_by_role("tab", name="API").click()
        await expect(page.get_by_text("Speak to it from your own code")).to_be_visible()
        assert await page.evaluate(width) == 360
