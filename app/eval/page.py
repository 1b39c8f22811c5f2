"""The evaluation as one HTML file: table, charts, and every text beside its reference. Needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.bench.report import Report
from app.bench.scoring import CHARACTER_LANGUAGES, Scorer
from app.eval.plots import Rate, clip_chart, interval_chart, share_chart
from app.eval.results import NONSPEECH, ArmResult, ClipResult, groups_of, measure_name, rate_cell

_STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --ink: #1d2125; --soft: #5d6670; --line: #e2e4e6;
  --a0: #2563c9; --a1: #c2570c; --a2: #0f7f6b; --a3: #8a3fb5; --bad: #b3261e; --badwash: #fbe4e2;
  --goodwash: #dcefe3; --good: #1b6b3a; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e4e7ea; --soft: #98a2ac;
  --line: #31373d; --a0: #7aa8f5; --a1: #f0a265; --a2: #5cc4ae; --a3: #c99be6; --bad: #ffb4ab; --badwash: #4a2320;
  --goodwash: #1d3a2a; --good: #8fd6a9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 78rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 2.25rem 0 .6rem; }
p { margin: .25rem 0; } .soft { color: var(--soft); font-size: .87rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; overflow-x: auto; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; } .row > .card { flex: 1 1 320px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; font-size: .82rem; vertical-align: bottom; }
th:first-child, td:first-child, .texts th, .texts td { text-align: left; }
td:not(:first-child):not(.text), td.rate { white-space: nowrap; } tr:last-child td { border-bottom: 0; }
.texts td { font-size: .88rem; } .texts td.rate { text-align: right; } .texts tr.reference td { border-bottom: 0; }
.texts .name { color: var(--soft); font-size: .8rem; overflow-wrap: anywhere; width: 12rem; }
.texts .rate { width: 5.5rem; } .summary { width: auto; min-width: 50%; } .summary td { white-space: nowrap; }
.texts tbody { border-bottom: 1px solid var(--line); } .texts tbody td { border-bottom: 0; padding: .15rem .6rem; }
.texts tbody tr:first-child td { padding-top: .5rem; } .texts tbody tr:last-child td { padding-bottom: .5rem; }
.key { display: inline-block; width: .65rem; height: .65rem; border-radius: 50%; margin-right: .4rem; }
del { color: var(--bad); background: var(--badwash); } ins { color: var(--good); background: var(--goodwash);
  text-decoration: none; border-bottom: 1px solid; } .fault { color: var(--bad); }
svg { display: block; width: 100%; min-width: 300px; height: auto; font: 12px system-ui, sans-serif; fill: var(--ink); }
.wide svg { min-width: 640px; }
svg .axis line { stroke: var(--line); } svg .axis text, svg .note { fill: var(--soft); font-size: 11px; }
svg .mark { fill: var(--ink); font-size: 11px; } svg circle { stroke: var(--card); stroke-width: 1; }
"""
_ARM_STYLE = (
    ".k{0} {{ background: var(--a{0}); }} svg .a{0} circle {{ fill: var(--a{0}); }} "
    "svg .a{0} line {{ stroke: var(--a{0}); stroke-width: 2; }} "
    "svg .a{0} path {{ stroke: var(--a{0}); fill: none; stroke-width: 2; }}\n"
)


def to_html(report: Report, arms: Sequence[ArmResult], scorer: Scorer) -> str:
    """Write the page."""
    style = _STYLE + "".join(_ARM_STYLE.format(index) for index in range(len(arms)))
    settings = "".join(
        f'<p class="soft">{_key(i)}{escape(a.name)}: {escape(a.settings)}</p>' for i, a in enumerate(arms)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{style}</style></head><body>\n"
        f"<h1>{escape(report.title)}</h1>\n"
        f'<p class="soft"><code>{escape(report.command)}</code></p><p class="soft">{escape(str(report.machine))}</p>\n'
        f"{settings}{_table(report)}{_error_charts(arms)}{_delay_charts(arms)}{_texts(arms, scorer)}</body></html>\n"
    )


def _key(arm: int) -> str:
    return f'<span class="key k{arm}"></span>'


def _table(report: Report) -> str:
    head = "".join(f"<th>{escape(heading).replace(' %', '&nbsp;%')}</th>" for heading in report.headings)
    rows = ""
    for index, (name, *cells) in enumerate(report.cells):
        rest = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows += f"<tr><td>{_key(index)}{escape(name)}</td>{rest}</tr>"
    return (
        f'<h2>Summary</h2><div class="card"><table class="summary"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n"
        '<p class="soft">In brackets 95 % intervals over clips. Delays in seconds: first text from the beginning of '
        "speech, words from their end to their first showing, finals from when the pause rule could fire. Revised: "
        "share of shown words that did not stay.</p>\n"
    )


def _error_charts(arms: Sequence[ArmResult]) -> str:
    groups = groups_of(arms)
    if not groups:
        return ""
    rates = [(group, [_rate(index, arm, group) for index, arm in enumerate(arms)]) for group in groups]
    clips = [
        (index, [(100 * clip.errors.rate, clip.entry.name) for clip in arm.clips if clip.group != NONSPEECH])
        for index, arm in enumerate(arms)
    ]
    return (
        f'<h2>Errors by group, with 95 % intervals</h2><div class="card wide">{interval_chart(rates)}</div>\n'
        f'<h2>Errors by clip</h2><div class="card wide">{clip_chart(clips)}</div>\n'
    )


def _rate(index: int, arm: ArmResult, group: str) -> Rate:
    pooled, interval = arm.pooled(group), arm.interval(group)
    return Rate(
        arm=index,
        value=100 * pooled.rate,
        interval=(100 * interval[0], 100 * interval[1]) if interval else None,
        label=f"{arm.name}, {measure_name(group)}: {rate_cell(pooled, interval)}",
    )


def _delay_charts(arms: Sequence[ArmResult]) -> str:
    charts = ""
    for index, arm in enumerate(arms):
        timings = arm.timings
        for title, values in (
            ("First text after speech began", [t.first_text_s for t in timings if t.first_text_s is not None]),
            ("A word after it was said", [late for timing in timings for late in timing.word_s]),
            ("A final after the pause rule", [late for timing in timings for late in timing.final_s]),
        ):
            if values:
                charts += f'<div class="card">{share_chart(values, title, arm=index)}</div>'
    if not charts:
        return ""
    return (
        f'<h2>Delays: share that is no longer; median and 95th percentile marked</h2><div class="row">{charts}</div>\n'
    )


# ------------------------------------------------------------------------------------------- texts


def _texts(arms: Sequence[ArmResult], scorer: Scorer) -> str:
    """Every clip with its reference and what each arm made of it, the worst first."""
    order = sorted(range(len(arms[0].clips)), key=lambda index: -_badness([arm.clips[index] for arm in arms]))
    bodies = "".join(_clip([arm.clips[index] for arm in arms], scorer) for index in order)
    return (
        '<h2>Every clip, the worst first</h2><p class="soft"><del>missing or wrong</del> and <ins>put in</ins>, after '
        "the normalisation that errors are counted with.</p>"
        f'<div class="card"><table class="texts">{bodies}</table></div>\n'
    )


def _badness(clips: Sequence[ClipResult]) -> float:
    """The highest error rate of any arm; words where none should be come first."""
    return max(clip.errors.rate if clip.entry.reference else 1e6 * clip.invented_words for clip in clips)


def _clip(clips: Sequence[ClipResult], scorer: Scorer) -> str:
    entry = clips[0].entry
    reference = escape(entry.reference) or '<span class="soft">nobody speaks</span>'
    if not any(clip.errors.n or clip.invented_words or clip.fault for clip in clips):
        return (
            f'<tbody><tr><td class="name">{escape(entry.name)}</td><td class="rate soft">all right</td>'
            f'<td class="text">{reference}</td></tr></tbody>'
        )
    rows = f'<tr class="reference"><td class="name" rowspan="{len(clips) + 1}">{escape(entry.name)}</td>'
    rows += f'<td class="rate"></td><td class="text">{reference}</td></tr>'
    for index, clip in enumerate(clips):
        rate = f"{100 * clip.errors.rate:.1f} %" if entry.reference else f"{clip.invented_words} words"
        fault = f' <span class="fault">{escape(clip.fault)}</span>' if clip.fault else ""
        rows += (
            f'<tr><td class="rate">{_key(index)}{rate}</td><td class="text">{_marked(clip, scorer)}{fault}</td></tr>'
        )
    return f"<tbody>{rows}</tbody>"


def _marked(clip: ClipResult, scorer: Scorer) -> str:
    """What was heard, with the differences from the reference marked."""
    from rapidfuzz.distance import Levenshtein  # comes with jiwer

    language = clip.entry.language if clip.entry.reference else None
    said, heard = scorer.split(clip.entry.reference, language), scorer.split(clip.text, language)
    space = "" if language in CHARACTER_LANGUAGES else " "
    parts = []
    for step in Levenshtein.opcodes(said, heard):
        missing = escape(space.join(said[step.src_start : step.src_end]))
        put_in = escape(space.join(heard[step.dest_start : step.dest_end]))
        if step.tag == "equal":
            parts.append(put_in)
        else:
            parts += [f"<del>{missing}</del>"] if missing else []
            parts += [f"<ins>{put_in}</ins>"] if put_in else []
    return space.join(parts)
