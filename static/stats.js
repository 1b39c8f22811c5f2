/**
 * The server's statistics, pushed by `/v1/stats/stream`; no DOM.
 *
 * Keeps the connection: after a loss it asks `/readyz` whether the server is loading or gone, and tries again with
 * growing pauses. A socket that says nothing for `SILENCE_MS` counts as lost, since a half-open one never closes.
 *
 * @typedef {{tick: number, at: number, encoder_batch: number, encoder_ms: number, tick_ms: number,
 *   decode_rows: number, tokens: number}} Tick
 * @typedef {{p50_ms: number|null, p95_ms: number|null, n: number}} Latency
 * @typedef {{type: "stats", now: number, model: string, device: string, dtype: string, encoder: string,
 *   sessions: number, speaking: number, max_sessions: number, waiting: number, languages?: string[],
 *   ticks: Tick[], latency: {partial: Latency, final: Latency}}} Stats
 * @typedef {"connecting" | "live" | "loading" | "failed" | "offline"} FeedState
 */

const SILENCE_MS = 6_000;
const READY_TIMEOUT_MS = 4_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8_000;
const LOADING_PAUSE_MS = 1_000; // a server that loads is about to be there

export class StatsFeed {
  /** @type {WebSocket|null} */ #socket = null;
  #pauseMs = FIRST_PAUSE_MS;
  #timer = 0;
  #stopped = false;

  /**
   * @param {{stream: string|URL, ready: string|URL}} urls
   * @param {{onStats: (stats: Stats) => void, onState: (state: FeedState) => void}} handlers
   */
  constructor(urls, handlers) {
    this.urls = urls;
    this.handlers = handlers;
  }

  start() {
    this.handlers.onState("connecting");
    this.#connect();
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#drop();
  }

  /** Try now instead of waiting for the pause to end. */
  retry() {
    if (this.#socket) return;
    this.#pauseMs = FIRST_PAUSE_MS;
    clearTimeout(this.#timer);
    this.#connect();
  }

  #connect() {
    const socket = new WebSocket(this.urls.stream);
    socket.onmessage = (message) => {
      this.#pauseMs = FIRST_PAUSE_MS;
      this.#watch();
      const stats = JSON.parse(message.data);
      if (stats.type !== "stats") return;
      this.handlers.onState("live");
      this.handlers.onStats(stats);
    };
    socket.onclose = () => this.#lost();
    this.#socket = socket;
    this.#watch();
  }

  #watch() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lost(), SILENCE_MS);
  }

  #drop() {
    if (!this.#socket) return;
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
    this.#socket = null;
  }

  async #lost() {
    this.#drop();
    clearTimeout(this.#timer);
    const state = await askReady(this.urls.ready);
    if (this.#stopped || this.#socket) return;
    this.handlers.onState(state);
    this.#timer = setTimeout(() => this.#connect(), state === "loading" ? LOADING_PAUSE_MS : this.#pauseMs);
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS);
  }
}

/**
 * @param {string|URL} url
 * @returns {Promise<FeedState>} what the server says of itself; "offline" if nobody answers
 */
export async function askReady(url) {
  try {
    const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(READY_TIMEOUT_MS) });
    if (answer.ok) return "connecting";
    const { status } = await answer.json();
    return status === "loading" || status === "failed" ? status : "offline";
  } catch {
    return "offline"; // fetch tells no more than that
  }
}
