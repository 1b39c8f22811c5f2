"""The logic of the browser code, run where it runs: modules of `static/` imported by a real Chromium."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, Route

from app.web.page import STATIC_ROUTE, static_folder
from tests.app.browsing import browsing

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

ADDRESS = "https://page.test/deep/er"  # no server: every request is answered from the folder
TRANSCRIPT = """
    const { Transcript } = await import("/static-app/transcript.js");
    document.body.innerHTML = `<div id="scroller" style="height: 100px; overflow: auto"><ol id="list"></ol></div>
      <button id="latest" hidden></button><p id="announcer"></p>`;
    const find = (id) => document.getElementById(id);
    const [scroller, list, latest, announcer] = ["scroller", "list", "latest", "announcer"].map(find);
    const transcript = new Transcript({ scroller, list, latest, announcer, onChange: () => {} });
    const settle = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const partial = (utterance, committed, tentative, end = 1) =>
      transcript.apply({ type: "partial", utterance, revision: 1, committed, tentative, start: 0.5, end });
    const final = (utterance, text, more = {}) =>
      transcript.apply({ type: "final", utterance, text, start: 0.5, end: 2, segments: [], ...more });
    const shown = () => [...list.querySelectorAll("p")].map((line) => line.textContent);
    transcript.begin(0);
"""


async def _answer(route: Route) -> None:
    name = route.request.url.partition(f"{STATIC_ROUTE}/")[2]
    if name:
        path = static_folder() / name
        await route.fulfill(body=path.read_bytes(), content_type=mimetypes.guess_type(path.name)[0])
    else:
        await route.fulfill(body="<!doctype html><title>test</title>", content_type="text/html")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page() -> AsyncIterator[Page]:
    async with browsing() as browser:
        page = await browser.new_page()
        await page.route("**/*", _answer)
        await page.goto(ADDRESS)
        yield page


async def run(page: Page, script: str) -> Any:
    """Run the body of an async function; what it returns."""
    return await page.evaluate(f"async () => {{ {script} }}")


async def test_times_read_as_clock_and_as_subtitle(page: Page) -> None:
    shown = await run(
        page,
        """
        const { clock, subtitleTime } = await import("/static-app/subtitles.js");
        return [[7, 750.9, 3723].map(clock), [0, 62.3456, 3599.9996].map(subtitleTime)];
        """,
    )
    assert shown == [["0:07", "12:30", "1:02:03"], ["00:00:00,000", "00:01:02,346", "01:00:00,000"]]


async def test_lines_become_text_and_subtitles(page: Page) -> None:
    text, srt = await run(
        page,
        """
        const { asText, asSrt } = await import("/static-app/subtitles.js");
        const lines = [{ text: "One.", start: 0.5, end: 1.25 }, { text: "Two.", start: 2, end: 3 }];
        return [asText(lines), asSrt(lines)];
        """,
    )
    assert text == "One.\nTwo.\n"
    assert srt == "1\n00:00:00,500 --> 00:00:01,250\nOne.\n\n2\n00:00:02,000 --> 00:00:03,000\nTwo.\n"


async def test_addresses_follow_sub_path_and_https(page: Page) -> None:
    addresses = await run(
        page,
        """
        const { pageBase, socketUrl } = await import("/static-app/app.js");
        return [pageBase().href, socketUrl(pageBase(), "v1/stream").href];
        """,
    )
    assert addresses == ["https://page.test/deep/er/", "wss://page.test/deep/er/v1/stream"]


async def test_committed_text_is_solid_and_tentative_text_grey(page: Page) -> None:
    spans = await run(
        page,
        TRANSCRIPT
        + """
        partial(0, "He hoped", " there");
        return [...list.querySelectorAll("span")].map((span) => [span.textContent, span.className]);
        """,
    )
    assert spans == [["He hoped", ""], [" there", "ts-tentative"]]


async def test_an_utterance_has_one_line_that_the_final_replaces(page: Page) -> None:
    lines = await run(
        page,
        TRANSCRIPT
        + """
        transcript.apply({ type: "speech_started", utterance: 0, start: 0.5 });
        partial(0, "", " he hope");
        partial(0, " He", " hoped");
        const before = shown();
        final(0, " He hoped there.");
        partial(1, "", " would");
        return [before, shown(), transcript.lines];
        """,
    )
    assert lines == [["He hoped"], ["He hoped there.", "would"], [{"text": "He hoped there.", "start": 0.5, "end": 2}]]


async def test_text_is_never_markup(page: Page) -> None:
    shown = await run(
        page,
        TRANSCRIPT
        + """
        partial(0, "<b>bold", "<img src=x onerror=alert(1)>");
        const open = list.querySelectorAll("b, img").length;
        final(0, "<i>final</i>");
        return [open, list.querySelectorAll("i").length, shown()];
        """,
    )
    assert shown == [0, 0, ["<i>final</i>"]]


async def test_a_final_without_words_leaves_no_line(page: Page) -> None:
    assert await run(page, TRANSCRIPT + 'partial(0, "", " hm"); final(0, ""); return [shown(), transcript.empty];') == [
        [],
        True,
    ]


async def test_only_finals_are_announced(page: Page) -> None:
    announced = await run(
        page,
        TRANSCRIPT
        + """
        partial(0, "He", " hoped");
        const before = announcer.textContent;
        final(0, "He hoped there.");
        return [before, announcer.textContent];
        """,
    )
    assert announced == ["", "He hoped there."]


async def test_an_open_utterance_keeps_its_words_when_the_session_ends(page: Page) -> None:
    lines = await run(
        page,
        TRANSCRIPT + 'partial(0, "He hoped", " there", 1.5); transcript.end(); return [transcript.lines, shown()];',
    )
    assert lines == [[{"text": "He hoped there", "start": 0.5, "end": 1.5}], ["He hoped there"]]


async def test_a_second_session_goes_on_where_the_first_ended(page: Page) -> None:
    lines = await run(
        page,
        TRANSCRIPT
        + """
        final(0, "One.");
        transcript.end();
        transcript.begin(10);
        final(0, "Two.", { segments: [{ text: " Two.", start: 0.5, end: 1 }] });
        return transcript.lines;
        """,
    )
    assert [(line["text"], line["start"], line["end"]) for line in lines] == [("One.", 0.5, 2), ("Two.", 10.5, 11)]


async def test_the_newest_line_is_followed_unless_the_reader_scrolled_up(page: Page) -> None:
    positions = await run(
        page,
        TRANSCRIPT
        + """
        const gap = () => Math.round(scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight);
        for (let i = 0; i < 20; i += 1) final(i, "line");
        await settle();
        const followed = gap();
        scroller.scrollTop = 0;
        await settle();
        const offered = !latest.hidden;
        final(20, "line");
        await settle();
        const stayed = scroller.scrollTop;
        latest.click();
        await settle();
        return [followed, offered, stayed, gap(), latest.hidden];
        """,
    )
    assert positions == [0, True, 0, 0, True]


async def test_the_history_forgets_what_left_the_chart_and_takes_no_tick_twice(page: Page) -> None:
    kept = await run(
        page,
        """
        const { History } = await import("/static-app/history.js");
        const history = new History();
        const none = { p50_ms: null, p95_ms: null, n: 0 };
        const tick = (n, at) => ({ tick: n, at, encoder_batch: 2, encoder_ms: 10, tick_ms: 20 });
        const add = (now, ticks) => history.add({ now, ticks, latency: { partial: none, final: none } }, now - 1000);
        add(1000, [tick(1, 999), tick(2, 1000)]);
        add(1001, [tick(2, 1000), tick(3, 1001)]);
        const numbers = history.ticks.map((tick) => tick.tick);
        add(1100, [tick(4, 1100)]);
        add(1101, [tick(1, 1101)]);  // the server has been started again
        return [numbers, history.ticks.map((tick) => tick.tick), history.now(101.5)];
        """,
    )
    assert kept == [[1, 2, 3], [1], 1101.5]


async def test_durations_have_three_figures_at_most(page: Page) -> None:
    shown = await run(
        page,
        """
        const { duration } = await import("/static-app/history.js");
        return [0.84, 9.97, 210.4, 999.6, 1320, 12345].map((ms) => Object.values(duration(ms)).join(" "));
        """,
    )
    assert shown == ["0.8 ms", "10 ms", "210 ms", "1.00 s", "1.32 s", "12.3 s"]


async def test_every_explanation_says_something(page: Page) -> None:
    shown = await run(
        page,
        """
        const { explain } = await import("/static-app/messages.js");
        return [explain("server_full").title, explain("new_code", "The sentence of the server.").text];
        """,
    )
    assert shown[0] == "The server is full."
    assert shown[1].startswith("The sentence of the server.")
