"""Charts as inline SVG: numbers in, markup out. Colours come from the page's classes a0, a1, ... one per arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 120, 24, 8, 40  # around the field, for labels
_BAND = 18  # height of one arm in a group
_GAP = 14  # between groups
_ASIDE = 4  # from one arm's dot to the next where they would cover each other


@dataclass(frozen=True, slots=True)
class Rate:
    """One rate with its interval; all in percent."""

    arm: int
    value: float
    interval: tuple[float, float] | None
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear, from values to pixels."""

    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * min(max(value, 0.0), self.high) / self.high

    def ticks(self) -> list[float]:
        """From 0 to the highest value in steps of 1, 2 or 5, about five of them."""
        step = _step(self.high)
        return [index * step for index in range(math.floor(self.high / step + 1e-9) + 1)]


def _step(high: float) -> float:
    rough = high / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _round_up(value: float) -> float:
    """The next tick, so that the axis ends on one."""
    value = value or 1.0
    return math.ceil(value / _step(value) - 1e-9) * _step(value)


def interval_chart(groups: Sequence[tuple[str, Sequence[Rate]]], *, width: int = 1080) -> str:
    """One band per group, in it one dot with its interval per arm, on a common axis in percent."""
    highs = [max(rate.value, rate.interval[1] if rate.interval else 0) for _, rates in groups for rate in rates]
    scale = Scale(_round_up(max(highs, default=1.0)), _LEFT, width - _RIGHT)
    parts: list[str] = []
    y = float(_TOP)
    for name, rates in groups:
        middle = y + _BAND * len(rates) / 2
        parts.append(
            f'<text class="label" x="{_LEFT - 12}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        )
        for rate in rates:
            parts.append(_whisker(rate, scale, y + _BAND / 2))
            y += _BAND
        y += _GAP
    axis = _x_axis(scale, _TOP, y - _GAP, "% of words or characters wrong", "{:g}")
    return _svg(width, y - _GAP + _BOTTOM, axis + "".join(parts), "Error rates by group and arm")


def _whisker(rate: Rate, scale: Scale, y: float) -> str:
    line = ""
    if rate.interval:
        low, high = (scale(bound) for bound in rate.interval)
        line = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    dot = f'<circle cx="{scale(rate.value):.1f}" cy="{y:.1f}" r="4.5"/>'
    return f'<g class="a{rate.arm}"><title>{escape(rate.label)}</title>{line}{dot}</g>'


def clip_chart(
    series: Sequence[tuple[int, Sequence[tuple[float, str]]]], *, width: int = 1080, height: int = 300
) -> str:
    """Error rates of all clips, each arm in ascending order, in percent; names appear under the pointer.

    Args:
        series: arm, and rate and name of each clip.
    """
    highest = max((rate for _, clips in series for rate, _ in clips), default=1.0)
    n_clips = max((len(clips) for _, clips in series), default=1)
    up = Scale(_round_up(highest), height - _BOTTOM, _TOP)
    along = Scale(float(max(1, n_clips - 1)), 60, width - _RIGHT)
    parts = []
    for arm, clips in series:
        dots = "".join(
            f'<circle cx="{along(index) + _ASIDE * (arm - (len(series) - 1) / 2):.1f}" cy="{up(rate):.1f}" r="3.5">'
            f"<title>{escape(name)}: {rate:.1f} %</title></circle>"
            for index, (rate, name) in enumerate(sorted(clips))
        )
        parts.append(f'<g class="a{arm}">{dots}</g>')
    axis = _y_axis(up, 48, width - _RIGHT, "{:g} %")
    note = f'<text class="note" x="{(48 + width - _RIGHT) / 2:.0f}" y="{height - 12}" text-anchor="middle">'
    note += f"{n_clips} clips, from the best to the worst of each arm</text>"
    return _svg(width, height, axis + note + "".join(parts), "Error rates by clip")


def share_chart(values: Sequence[float], title: str, *, arm: int, width: int = 340, height: int = 220) -> str:
    """Which share of delays is no longer than this: a staircase, with median and 95th percentile marked; seconds."""
    ordered = sorted(values)
    across = Scale(_round_up(max(ordered[-1], 0.1)), 44, width - _RIGHT)
    up = Scale(1.0, height - _BOTTOM, _TOP + 18)
    path = f"M{across(0):.1f} {up(0):.1f}"
    for index, value in enumerate(ordered, start=1):
        path += f"H{across(value):.1f}V{up(index / len(ordered)):.1f}"
    path += f"H{across(across.high):.1f}"
    marks = ""
    for share in (0.5, 0.95):
        value = ordered[math.ceil(share * len(ordered)) - 1]
        x, y = across(value), up(share)
        near_end = x > width - 110
        marks += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/><text class="mark" x="{x + (-8 if near_end else 8):.1f}" '
        marks += f'y="{y + 15:.1f}" text-anchor="{"end" if near_end else "start"}">{value:.2f} s</text>'
    body = f'<text class="label" x="44" y="{_TOP + 6}">{escape(title)}, n = {len(ordered)}</text>'
    body += _y_axis(Scale(1.0, height - _BOTTOM, _TOP + 18), 44, width - _RIGHT, "{:.0%}")
    body += _x_axis(across, _TOP + 18, height - _BOTTOM, "seconds", "{:g}")
    return _svg(width, height, f'{body}<g class="a{arm}"><path d="{path}"/>{marks}</g>', title)


def _x_axis(scale: Scale, top: float, bottom: float, unit: str, form: str) -> str:
    lines = "".join(
        f'<line x1="{scale(tick):.1f}" x2="{scale(tick):.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
        f'<text x="{scale(tick):.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{form.format(tick)}</text>'
        for tick in scale.ticks()
    )
    middle = (scale.begin + scale.end) / 2
    note = f'<text class="note" x="{middle:.0f}" y="{bottom + 32:.1f}" text-anchor="middle">{escape(unit)}</text>'
    return f'<g class="axis">{lines}</g>{note}'


def _y_axis(scale: Scale, left: float, right: float, form: str) -> str:
    lines = "".join(
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{scale(tick):.1f}" y2="{scale(tick):.1f}"/>'
        f'<text x="{left - 6:.1f}" y="{scale(tick) + 4:.1f}" text-anchor="end">{form.format(tick)}</text>'
        for tick in scale.ticks()
    )
    return f'<g class="axis">{lines}</g>'


def _svg(width: float, height: float, body: str, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )
