/**
 * The native protocol of `/v1/stream` over one WebSocket; no DOM.
 *
 * Call `open` once, `send` any number of times, then `finish` (everything is answered) or `abandon` (nothing more is
 * wanted). Audio sent before the server is ready is held, up to `MAX_HELD_BYTES`. Whatever ends the session,
 * `onEnd` is called exactly once, and with a fault unless the session finished as asked.
 *
 * @typedef {{sample_rate: number, language: string|null, interim: boolean}} Settings
 * @typedef {{type: "ready", session_id: string, model: string, sample_rate: number, languages?: string[]}} Ready
 * @typedef {{type: "speech_started", utterance: number, start: number}} SpeechStarted
 * @typedef {{type: "partial", utterance: number, revision: number, committed: string, tentative: string,
 *   start: number, end: number}} Partial
 * @typedef {{text: string, start: number, end: number}} Segment
 * @typedef {{type: "final", utterance: number, text: string, start: number, end: number, language?: string,
 *   reason?: string, segments?: Segment[]}} Final
 * @typedef {Ready | SpeechStarted | Partial | Final | {type: "warning", code: string, message: string}} ServerEvent
 * @typedef {{code: string, message: string}} Fault
 */

/** Unsent audio at which the line counts as too slow: 1 MiB, 32 s at 16 kHz. */
export const MAX_UNSENT_BYTES = 1 << 20;
/** Audio held while the server gets ready: 10 s at 48 kHz. */
const MAX_HELD_BYTES = 960_000;
const OPEN_TIMEOUT_MS = 15_000;
const FINISH_TIMEOUT_MS = 60_000;

/** What a close code says when no error message came before it. @type {Record<number, string>} */
const CODE_OF_CLOSE = { 1009: "too_big", 1011: "internal", 1012: "shutting_down", 1013: "server_full" };

/** What the reason of a `closed` says when no error message came before it. @type {Record<string, string>} */
const CODE_OF_REASON = { shutdown: "shutting_down", failed: "internal" };

export class TranscriptionClient {
  /** @type {WebSocket|null} */ #socket = null;
  /** @type {ArrayBuffer[]} */ #held = [];
  /** @type {Fault|null} */ #fault = null;
  #heldBytes = 0;
  #ready = false;
  #ended = false;
  #timer = 0;

  /**
   * @param {string|URL} url
   * @param {{onEvent: (event: ServerEvent) => void, onEnd: (fault: Fault|null) => void}} handlers
   */
  constructor(url, handlers) {
    this.url = url;
    this.handlers = handlers;
  }

  /** @param {Settings} settings */
  open(settings) {
    const socket = new WebSocket(this.url);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(JSON.stringify({ type: "start", format: "pcm16", channels: 1, ...settings }));
    socket.onmessage = (message) => this.#receive(JSON.parse(message.data));
    socket.onclose = (event) => this.#closed(event);
    this.#socket = socket;
    this.#expect(OPEN_TIMEOUT_MS, "no_answer", "The server did not answer in time.");
  }

  /** @param {ArrayBuffer} samples 16-bit samples */
  send(samples) {
    if (this.#ended) return;
    if (!this.#ready || !this.#socket) {
      this.#hold(samples);
    } else if (this.#socket.bufferedAmount > MAX_UNSENT_BYTES) {
      this.fail("too_slow", "More than 1 MiB of audio waits to be sent.");
    } else {
      this.#socket.send(samples);
    }
  }

  /** Ask for the rest of the answers; `onEnd(null)` follows once they are all in. */
  finish() {
    if (this.#ended) return;
    if (!this.#ready || !this.#socket) {
      this.abandon();
      return;
    }
    this.#socket.send(JSON.stringify({ type: "finish" }));
    this.#expect(FINISH_TIMEOUT_MS, "no_answer", "The server did not answer the rest in time.");
  }

  /** Leave at once; nothing more is wanted. */
  abandon() {
    this.#end(null);
  }

  /**
   * End the session because of something seen on this side, such as the browser going offline.
   *
   * @param {string} code
   * @param {string} message
   */
  fail(code, message) {
    this.#end({ code, message });
  }

  /** @param {ArrayBuffer} samples */
  #hold(samples) {
    this.#held.push(samples);
    this.#heldBytes += samples.byteLength;
    // The beginning goes first: by then the newest words are what the speaker still remembers.
    while (this.#heldBytes > MAX_HELD_BYTES) this.#heldBytes -= this.#held.shift()?.byteLength ?? 0;
  }

  /** @param {any} message */
  #receive(message) {
    switch (message.type) {
      case "ready":
        this.#ready = true;
        clearTimeout(this.#timer);
        for (const samples of this.#held.splice(0)) this.#socket?.send(samples);
        this.handlers.onEvent(message);
        break;
      case "error":
        // The first fault is the cause; text already heard may still follow it.
        this.#fault ??= { code: message.code, message: message.message };
        break;
      case "closed":
        this.#end(this.#fault ?? faultOfReason(message.reason));
        break;
      default:
        this.handlers.onEvent(message);
    }
  }

  /** @param {CloseEvent} event */
  #closed(event) {
    const code = CODE_OF_CLOSE[event.code] ?? (this.#ready ? "lost" : "unreachable");
    this.#end(this.#fault ?? { code, message: event.reason });
  }

  /**
   * @param {number} timeoutMs
   * @param {string} code
   * @param {string} message
   */
  #expect(timeoutMs, code, message) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.fail(code, message), timeoutMs);
  }

  /** @param {Fault|null} fault */
  #end(fault) {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    if (this.#socket) {
      this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
      this.#socket.close();
    }
    this.handlers.onEnd(fault);
  }
}

/**
 * @param {string} reason
 * @returns {Fault|null}
 */
function faultOfReason(reason) {
  return reason === "finished" ? null : { code: CODE_OF_REASON[reason] ?? "lost", message: "" };
}
