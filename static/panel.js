/**
 * The engine's side of the page: state of the connection, number of speakers, tiles, charts, model.
 *
 * @import {FeedState, Latency, Stats} from "./stats.js"
 */

import { ChartBoard } from "./charts.js";
import { duration, History, summarise } from "./history.js";

const SUMMARY_EVERY_MS = 5_000;

/** @type {Record<FeedState, string>} */
const FEED_LABELS = {
  connecting: "Connecting",
  live: "Connected",
  loading: "Loading the model",
  failed: "The engine has failed",
  offline: "No connection",
};

export class EnginePanel {
  #history = new History();
  #summarised = -Infinity;
  /** @type {FeedState} */ #feed = "connecting";

  /** @param {Record<string, HTMLElement>} refs */
  constructor(refs) {
    this.refs = refs;
    this.board = new ChartBoard(refs.engine, this.#history);
    this.board.start();
  }

  /** @returns {FeedState} */
  get feed() {
    return this.#feed;
  }

  /** @param {FeedState} state */
  showFeed(state) {
    if (state === this.#feed) return;
    this.#feed = state;
    this.refs.engine.dataset.feed = state;
    put(this.refs.feed, FEED_LABELS[state]);
  }

  /** @param {Stats} stats */
  show(stats) {
    const { refs } = this;
    const clock = performance.now();
    this.#history.add(stats, clock / 1000);
    this.board.update();
    put(refs.sessions, stats.sessions === 0 ? "No" : String(stats.sessions));
    put(refs.sessionsLabel, stats.sessions === 1 ? "speaker on this server" : "speakers on this server");
    const last = stats.ticks.at(-1);
    if (last) {
      put(refs.batch, String(last.encoder_batch));
      putDuration(last.encoder_ms, refs.encoder, refs.encoderUnit);
    }
    putLatency(stats.latency.partial, refs.partial, refs.partialUnit, refs.partialTail);
    putLatency(stats.latency.final, refs.final, refs.finalUnit, refs.finalTail);
    put(refs.model, `${stats.model} · ${stats.device} · ${stats.dtype} · ${stats.encoder} encoder`);
    if (clock - this.#summarised < SUMMARY_EVERY_MS) return;
    this.#summarised = clock;
    const { batch, time, latency } = summarise(this.#history);
    put(refs.batchSummary, batch);
    put(refs.timeSummary, time);
    put(refs.latencySummary, latency);
  }
}

/**
 * @param {HTMLElement} element
 * @param {string} text
 */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * @param {number} ms
 * @param {HTMLElement} value
 * @param {HTMLElement} unit
 */
function putDuration(ms, value, unit) {
  const shown = duration(ms);
  put(value, shown.value);
  put(unit, shown.unit);
}

/**
 * @param {Latency} latency
 * @param {HTMLElement} value
 * @param {HTMLElement} unit
 * @param {HTMLElement} tail
 */
function putLatency({ p50_ms, p95_ms }, value, unit, tail) {
  if (p50_ms === null || p95_ms === null) {
    put(value, "");
    put(unit, "");
    put(tail, "");
    return;
  }
  putDuration(p50_ms, value, unit);
  const slow = duration(p95_ms);
  put(tail, `p95 ${slow.value} ${slow.unit}`);
}
