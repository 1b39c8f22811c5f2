"""The page: a small Gradio Blocks frame around the browser code in `static/`.

Gradio gives the title, the tabs, the theme and the fonts. Everything that moves is drawn by `static/app.js`, which
talks to the native WebSocket and to the statistics by itself: no Gradio event runs per viewer or per update, so a
hundred viewers cost no more than one. The HTML components are never an output of an event, since that would render
them anew and drop the text they hold.

Holds no audio logic and knows neither engine nor gateway. Nothing on the page comes from another host.
"""

from __future__ import annotations

import os
from pathlib import Path

# Gradio looks at these when it is imported; a transcription server has nobody to report to.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr
from fastapi import FastAPI

STATIC_ROUTE = "/static-app"  # Gradio keeps /static for itself

# The page may live under a sub-path that only the browser knows, so the address is made there.
_IMPORT = """
const base = location.href.split(/[?#]/)[0].replace(/\\/?$/, "/");
import(base + "static-app/{module}").then((module) => module.{function}(element));
"""


def static_folder() -> Path:
    """Return the folder of the browser code: inside the package when installed, beside it in a checkout.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    here = Path(__file__).resolve().parents[1]  # the folder of the package `app`
    for folder in (here / "static", here.parent / "static"):
        if (folder / "app.js").is_file():
            return folder
    raise FileNotFoundError(f"The page's files are missing beside {here}; install tickscribe again.")


def build_page(static: Path) -> gr.Blocks:
    """Lay out the page from the fragments in `static`."""
    blocks: gr.Blocks = gr.Blocks(title="tickscribe", analytics_enabled=False, fill_width=True)
    with blocks:
        gr.HTML(html_template=_fragment(static / "header.html"), elem_id="ts-header", apply_default_css=False)
        with gr.Tabs():
            with gr.Tab("Transcribe"):
                gr.HTML(
                    html_template=_fragment(static / "page.html"),
                    js_on_load=_IMPORT.format(module="app.js", function="mountPage"),
                    elem_id="ts-page",
                    apply_default_css=False,
                )
            with gr.Tab("API"):
                gr.HTML(
                    html_template=_fragment(static / "api.html"),
                    js_on_load=_IMPORT.format(module="api.js", function="mountApi"),
                    elem_id="ts-api",
                    apply_default_css=False,
                )
    return blocks


def mount(app: FastAPI) -> FastAPI:
    """Mount the page at "/"; call it last, since routes added afterwards are never reached.

    The application must serve `static_folder()` at `STATIC_ROUTE`.

    Returns:
        The same application.
    """
    static = static_folder()
    gr.mount_gradio_app(
        app,
        build_page(static),
        path="/",
        ssr_mode=False,
        run_history=False,
        footer_links=[],
        favicon_path=str(static / "favicon.svg"),
        theme=_theme(),
        head='<link rel="stylesheet" href="static-app/style.css" /><meta name="color-scheme" content="light dark" />',
    )
    return app


def _fragment(path: Path) -> str:
    """Read a piece of HTML that Gradio will take as a template without placeholders."""
    html = path.read_text(encoding="utf-8")
    assert not any(mark in html for mark in ("${", "{{", "`")), f"{path.name} holds template marks"
    return html


def _theme() -> gr.themes.Base:
    """Fonts that Gradio brings along; colours and measures stand in `style.css`."""
    # Whole alphabets; the SemiBold that comes with them holds a few letters only.
    sans = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.LocalFont("IBM Plex Mono", weights=(400,))
    return gr.themes.Base(
        font=[sans, "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
    ).set(
        body_background_fill="#f6f5f1",
        body_background_fill_dark="#141310",
        body_text_color="#1c1b18",
        body_text_color_dark="#edeae1",
    )
