"""A real Chromium for one test, with a WAV file as its microphone, and the few things a test does with the page."""

from __future__ import annotations

import shutil
import wave
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import soxr
from playwright.async_api import Browser, Page, async_playwright, expect

from engine.types import SAMPLE_RATE, Samples

MICROPHONE_RATE = 48_000  # of the file that Chromium plays as a microphone
QUIET_S = 1.0  # before speech, since the file plays a little before the page listens, and after it
PATIENCE_MS = 15_000.0  # for anything to happen on the page that should happen at once

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_ALLOWED = "--use-fake-ui-for-media-stream"
_PRESENT = "--use-fake-device-for-media-stream"


@asynccontextmanager
async def browsing(
    microphone: Path | None = None, *, is_allowed: bool = True, is_present: bool = True, flags: Sequence[str] = ()
) -> AsyncIterator[Browser]:
    """Run a Chromium that plays `microphone` over and over; without a file it beeps.

    Args:
        microphone: a WAV file.
        is_allowed: the speaker lets the page have the microphone.
        is_present: there is a microphone at all.
        flags: more of Chromium's flags.
    """
    chosen = [*_FLAGS, *flags]
    if is_allowed:
        chosen.append(_ALLOWED)
    if is_present:
        chosen.append(_PRESENT)
    if microphone is not None:
        chosen.append(f"--use-file-for-fake-audio-capture={microphone}")
    installed = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=installed, args=chosen)
        try:
            yield browser
        finally:
            await browser.close()


async def open_page(browser: Browser, url: str, **options: object) -> Page:
    """Open the page and wait until its button does something."""
    page = await browser.new_page(**options)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    await page.goto(url)
    await page.locator("[data-ref=record]:enabled").wait_for()
    return page


def write_microphone(path: Path, speech: Samples) -> Path:
    """Write `speech`, (n,) at 16 kHz, as a file for Chromium, with silence around it; return the path."""
    quiet = np.zeros(round(QUIET_S * MICROPHONE_RATE), np.float32)
    loud = soxr.resample(speech, SAMPLE_RATE, MICROPHONE_RATE)
    samples = np.concatenate([quiet, loud, quiet])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(MICROPHONE_RATE)
        file.writeframes(np.round(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


async def transcript(page: Page) -> str:
    """The words on the page, without the times."""
    return " ".join(await page.locator(".ts-line p").all_inner_texts())
