/**
 * The last minute of the engine as numbers: what the charts draw and the tiles say. No DOM.
 *
 * Times are seconds since the epoch by the server's clock; `now` carries that clock on between two messages, so that a
 * wrong clock on this machine shifts nothing.
 *
 * @import {Stats, Tick} from "./stats.js"
 * @typedef {{at: number, partialP50: number|null, partialP95: number|null, finalP50: number|null,
 *   finalP95: number|null}} LatencySample
 */

/** Seconds that the charts show. */
export const WINDOW_S = 60;
/** Kept a little longer than shown, so that lines leave the chart at its edge and not inside it. */
const KEEP_S = WINDOW_S + 10;
/** About seventy ticks a second; beyond that the oldest go first. */
const MAX_TICKS = 5_000;

export class History {
  /** @type {Tick[]} */ ticks = [];
  /** @type {LatencySample[]} */ latency = [];
  #offset = -Infinity;

  /**
   * @param {Stats} stats
   * @param {number} clock seconds of a clock that never jumps, on this machine
   */
  add(stats, clock) {
    // The message that travelled fastest tells the difference of the clocks best. A drop of more than 5 s is the
    // server's clock being set.
    const offset = stats.now - clock;
    this.#offset = offset > this.#offset || this.#offset - offset > 5 ? offset : this.#offset;
    const last = this.ticks.at(-1)?.tick ?? -1;
    const restarted =
      stats.ticks.length > 0 && stats.ticks[0].tick < last && stats.ticks[0].at > (this.ticks.at(-1)?.at ?? 0);
    if (restarted) this.ticks = [];
    this.ticks.push(...stats.ticks.filter((tick) => restarted || tick.tick > last));
    const { partial, final } = stats.latency;
    this.latency.push({
      at: stats.now,
      partialP50: partial.p50_ms,
      partialP95: partial.p95_ms,
      finalP50: final.p50_ms,
      finalP95: final.p95_ms,
    });
    this.#forget(stats.now - KEEP_S);
  }

  /**
   * @param {number} clock the same clock as for `add`
   * @returns {number} the server's time
   */
  now(clock) {
    return Number.isFinite(this.#offset) ? clock + this.#offset : clock;
  }

  /** @param {number} before */
  #forget(before) {
    const firstTick = this.ticks.findIndex((tick) => tick.at >= before);
    this.ticks.splice(0, Math.max(firstTick < 0 ? this.ticks.length : firstTick, this.ticks.length - MAX_TICKS));
    const firstSample = this.latency.findIndex((sample) => sample.at >= before);
    this.latency.splice(0, firstSample < 0 ? this.latency.length : firstSample);
  }
}

/**
 * @param {number} ms
 * @returns {{value: string, unit: string}} three figures at most: 8.4 ms, 210 ms, 1.32 s
 */
export function duration(ms) {
  if (ms >= 999.5) return { value: (ms / 1000).toFixed(ms < 9_995 ? 2 : 1), unit: "s" };
  return { value: ms < 9.95 ? ms.toFixed(1) : String(Math.round(ms)), unit: "ms" };
}

/**
 * @param {number|null|undefined} ms
 * @returns {string}
 */
function spoken(ms) {
  if (ms === null || ms === undefined) return "not measured yet";
  const { value, unit } = duration(ms);
  return `${value} ${unit}`;
}

/**
 * The charts in words, for screen readers.
 *
 * @param {History} history
 * @returns {{batch: string, time: string, latency: string}}
 */
export function summarise({ ticks, latency }) {
  const last = ticks.at(-1);
  const sample = latency.at(-1);
  const idle = "The encoder has not run in the last minute.";
  const batches = ticks.map((tick) => tick.encoder_batch);
  const slowest = ticks.reduce((most, tick) => Math.max(most, tick.tick_ms), 0);
  return {
    batch: last
      ? `Bar chart. ${ticks.length} encoder runs in the last minute, shared by ${Math.min(...batches)} to ${Math.max(...batches)} voices; the last by ${last.encoder_batch}.`
      : idle,
    time: last
      ? `Line chart. The last encoder run took ${spoken(last.encoder_ms)}, its whole tick ${spoken(last.tick_ms)}; the slowest tick of the last minute took ${spoken(slowest)}.`
      : idle,
    latency: `Line chart. Partial text, median ${spoken(sample?.partialP50)}, 95th percentile ${spoken(sample?.partialP95)}; final text, median ${spoken(sample?.finalP50)}, 95th percentile ${spoken(sample?.finalP95)}.`,
  };
}
