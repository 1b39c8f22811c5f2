/**
 * Three small canvas charts of the last minute, drawn from a `History`.
 *
 * Time runs to the left by whole device pixels, and a chart is drawn only when it has moved by one, has new numbers or
 * is still growing to a new scale: about ten drawings a second, none while hidden. With reduced motion the charts move
 * once a second. Colours come from the style sheet's custom properties and follow light and dark.
 *
 * @import {History} from "./history.js"
 * @typedef {{ground: string, line: string, label: string, strong: string, soft: string, accent: string,
 *   font: string}} Palette
 * @typedef {{context: CanvasRenderingContext2D, palette: Palette, width: number, height: number,
 *   x: (at: number) => number, y: (value: number) => number, scale: number}} Plot
 * @typedef {{since: number, at: number, value: number|null}} Point measured at a moment, about the time since another
 * @typedef {{unit: string, least: number, whole: boolean, highest: (history: History) => number,
 *   draw: (plot: Plot, history: History) => void}} Kind
 */

import { WINDOW_S } from "./history.js";

const GUTTER_PX = 46; // right, for the labels of the value axis
const FOOT_PX = 18; // below, for the labels of the time axis
const HEAD_PX = 8;
const GAP_S = 2; // a line breaks where nothing was going on for longer than this
const GROWTH = 0.25; // part of the way to a new scale made per drawing
const CALM_MS = 1000;

/** Bars as wide as the tick was long, as high as the number of voices in it. @type {Kind} */
const batch = {
  unit: "",
  least: 4,
  whole: true,
  highest: ({ ticks }) => ticks.reduce((most, tick) => Math.max(most, tick.encoder_batch), 0),
  draw(plot, { ticks }) {
    const { context, palette, scale } = plot;
    const thinnest = 2;
    for (const [i, tick] of ticks.entries()) {
      const right = plot.x(tick.at);
      const left = Math.min(plot.x(tick.at - tick.tick_ms / 1000), right - thinnest);
      const top = plot.y(tick.encoder_batch);
      context.fillStyle = i === ticks.length - 1 ? palette.accent : palette.strong;
      context.fillRect(left, top, Math.max(right - left - 1, thinnest), plot.y(0) - top);
    }
    if (scale > 16) return;
    // One cell per voice; the axis line between them stays.
    for (let n = 1; n < scale; n += 1) {
      context.fillStyle = n === scale / 2 ? palette.line : palette.ground;
      context.fillRect(0, plot.y(n), plot.width, 1);
    }
  },
};

/** The encoder's time within the time of its tick. @type {Kind} */
const time = {
  unit: "ms",
  least: 20,
  whole: false,
  highest: ({ ticks }) => ticks.reduce((most, tick) => Math.max(most, tick.tick_ms), 0),
  draw(plot, { ticks }) {
    const { palette } = plot;
    const of = (/** @type {"tick_ms"|"encoder_ms"} */ key) =>
      ticks.map((tick) => ({ since: tick.at - tick.tick_ms / 1000, at: tick.at, value: tick[key] }));
    stroke(plot, of("tick_ms"), palette.soft);
    stroke(plot, of("encoder_ms"), palette.accent);
  },
};

/** Two ribbons from the median to the 95th percentile. @type {Kind} */
const latency = {
  unit: "ms",
  least: 200,
  whole: false,
  highest: (history) =>
    history.latency.reduce((most, sample) => Math.max(most, sample.partialP95 ?? 0, sample.finalP95 ?? 0), 0),
  draw(plot, history) {
    const { palette } = plot;
    const of = (/** @type {"partialP50"|"partialP95"|"finalP50"|"finalP95"} */ key) =>
      history.latency.map(({ at, [key]: value }) => ({ since: at, at, value }));
    ribbon(plot, of("finalP50"), of("finalP95"), palette.strong);
    ribbon(plot, of("partialP50"), of("partialP95"), palette.accent);
  },
};

/** @type {Record<string, Kind>} */
const KINDS = { batch, time, latency };

/**
 * @param {Plot} plot
 * @param {Point[]} points
 * @param {string} colour
 */
function stroke(plot, points, colour) {
  const { context } = plot;
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  for (const run of runs(points)) {
    context.beginPath();
    for (const { at, value } of run) context.lineTo(plot.x(at), plot.y(value));
    context.stroke();
    if (run.length > 1) continue;
    context.fillStyle = colour; // a single point has no length to stroke
    context.fillRect(plot.x(run[0].at) - 1, plot.y(run[0].value) - 1, 2, 2);
  }
}

/**
 * @param {Plot} plot
 * @param {Point[]} low
 * @param {Point[]} high
 * @param {string} colour
 */
function ribbon(plot, low, high, colour) {
  const { context } = plot;
  const highs = runs(high);
  context.fillStyle = colour;
  context.globalAlpha = 0.14;
  for (const [i, run] of runs(low).entries()) {
    context.beginPath();
    for (const { at, value } of run) context.lineTo(plot.x(at), plot.y(value));
    for (const { at, value } of (highs[i] ?? []).toReversed()) context.lineTo(plot.x(at), plot.y(value));
    context.fill();
  }
  context.globalAlpha = 1;
  stroke(plot, low, colour);
}

/**
 * @param {Point[]} points
 * @returns {{at: number, value: number}[][]} stretches without a gap
 */
function runs(points) {
  /** @type {{at: number, value: number}[][]} */
  const found = [];
  let last = -Infinity;
  for (const { since, at, value } of points) {
    if (value === null) continue;
    if (since - last > GAP_S) found.push([]);
    found[found.length - 1].push({ at, value });
    last = at;
  }
  return found;
}

/**
 * @param {number} value
 * @param {Kind} kind
 * @returns {number} the smallest round number not below the value
 */
function ceiling(value, { least, whole }) {
  if (value <= least) return least;
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = whole && power === 1 ? [4, 6, 8, 10] : [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10];
  return (steps.find((step) => step * power >= value) ?? 10) * power;
}

/** One canvas. */
class Chart {
  #scale = 0;
  #target = 0;
  #version = -1;
  #width = 0;
  #height = 0;
  #drawn = "";

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Kind} kind
   */
  constructor(canvas, kind) {
    this.canvas = canvas;
    this.kind = kind;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    // Asking the canvas for its size at every frame would force a layout each time.
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = Math.round(contentRect.width);
      this.#height = Math.round(contentRect.height);
    }).observe(canvas);
  }

  /** Draw at the next chance, whatever has been drawn. */
  invalidate() {
    this.#drawn = "";
  }

  /**
   * @param {History} history
   * @param {Palette} palette
   * @param {number} now seconds, the server's clock
   * @param {{version: number, calm: boolean}} state `version` counts the messages
   */
  draw(history, palette, now, { version, calm }) {
    const { canvas, context, kind } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.#width, this.#height];
    if (width === 0) return; // in a hidden tab
    if (version !== this.#version) this.#target = ceiling(kind.highest(history), kind);
    this.#version = version;
    const inner = width - GUTTER_PX;
    const perSecond = (inner * ratio) / WINDOW_S;
    const origin = Math.round(now * perSecond);
    const target = this.#target;
    const settled = Math.abs(target - this.#scale) < target / 200;
    const key = `${origin} ${version} ${width} ${height} ${ratio}`;
    if (settled && key === this.#drawn) return;
    this.#drawn = key;
    this.#scale = settled || calm || this.#scale === 0 ? target : this.#scale + (target - this.#scale) * GROWTH;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const foot = height - FOOT_PX;
    const snap = (/** @type {number} */ value) => Math.round(value * ratio) / ratio;
    /** @type {Plot} */
    const plot = {
      context,
      palette,
      width: inner,
      height,
      // Whole pixels per point, counted from the epoch: distances stay what they are while the chart moves.
      x: (at) => inner + (Math.round(at * perSecond) - origin) / ratio,
      y: (value) => snap(foot - (Math.min(value, this.#scale) / this.#scale) * (foot - HEAD_PX)),
      scale: this.#scale,
    };
    this.#axes(plot, target);
    context.save();
    context.beginPath();
    context.rect(0, 0, inner, foot);
    context.clip();
    kind.draw(plot, history);
    context.restore();
    context.fillStyle = palette.line;
    context.fillRect(0, foot, inner, 1 / ratio);
  }

  /**
   * @param {Plot} plot
   * @param {number} target the scale when it has stopped growing
   */
  #axes(plot, target) {
    const { context, palette, width, height } = plot;
    context.font = palette.font;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const value of [0, target / 2, target]) {
      const y = plot.y(value);
      if (value > 0) {
        context.fillStyle = palette.line;
        context.fillRect(0, y, width, 1 / (window.devicePixelRatio || 1));
      }
      context.fillStyle = palette.label;
      context.fillText(axisLabel(value, this.kind, value === target), width + 6, y);
    }
    context.textBaseline = "alphabetic";
    for (const [seconds, align] of /** @type {[number, CanvasTextAlign][]} */ ([
      [60, "left"],
      [30, "center"],
      [0, "right"],
    ])) {
      context.textAlign = align;
      context.fillText(seconds ? `−${seconds} s` : "now", width * (1 - seconds / WINDOW_S), height - 3);
    }
  }
}

/**
 * @param {number} value
 * @param {Kind} kind
 * @param {boolean} withUnit
 * @returns {string}
 */
function axisLabel(value, { unit }, withUnit) {
  if (unit === "ms" && value >= 1000) return `${+(value / 1000).toFixed(1)} s`;
  return withUnit && unit ? `${+value.toFixed(1)} ${unit}` : String(+value.toFixed(1));
}

/** All charts of the page, and the loop that draws them. */
export class ChartBoard {
  /** @type {Chart[]} */ #charts;
  #version = 0;
  #frame = 0;
  #lastDrawing = -Infinity;
  #calm = window.matchMedia("(prefers-reduced-motion: reduce)");

  /**
   * @param {HTMLElement} root holds canvases with `data-chart` "batch", "time" and "latency"
   * @param {History} history
   */
  constructor(root, history) {
    this.root = root;
    this.history = history;
    this.#charts = [...root.querySelectorAll("canvas[data-chart]")].map((canvas) => {
      const element = /** @type {HTMLCanvasElement} */ (canvas);
      return new Chart(element, KINDS[element.dataset.chart ?? ""]);
    });
    this.palette = readPalette(root);
  }

  /** Draw from now on; frames come only while the browser shows the page. */
  start() {
    const repaint = () => {
      this.palette = readPalette(this.root);
      for (const chart of this.#charts) chart.invalidate();
    };
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => requestAnimationFrame(repaint));
    new MutationObserver(repaint).observe(document.body, { attributeFilter: ["class"] });
    document.fonts.ready.then(repaint);
    const draw = (/** @type {number} */ at) => {
      this.#draw(at);
      this.#frame = requestAnimationFrame(draw);
    };
    this.#frame = requestAnimationFrame(draw);
  }

  stop() {
    cancelAnimationFrame(this.#frame);
  }

  /** New numbers are in the history. */
  update() {
    this.#version += 1;
  }

  /** @param {number} at milliseconds of the page's clock */
  #draw(at) {
    const calm = this.#calm.matches;
    if (calm && at - this.#lastDrawing < CALM_MS) return;
    this.#lastDrawing = at;
    const now = this.history.now(at / 1000);
    for (const chart of this.#charts) chart.draw(this.history, this.palette, now, { version: this.#version, calm });
  }
}

/**
 * @param {HTMLElement} root
 * @returns {Palette}
 */
function readPalette(root) {
  const style = getComputedStyle(root);
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    ground: read("--ts-ground"),
    line: read("--ts-line"),
    label: read("--ts-quiet"),
    strong: read("--ts-data"),
    soft: read("--ts-data-soft"),
    accent: read("--ts-accent"),
    font: `11px ${style.fontFamily}`,
  };
}
