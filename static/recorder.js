/**
 * One recording: microphone and server session together, from Start to the last answer; no DOM.
 *
 * The states go idle -> asking (for the microphone) -> connecting -> live -> finishing -> idle, and from everywhere
 * back to idle with a fault. Audio flows into the client from the first frame on, so nothing said while the server
 * gets ready is lost. A session that has been left answers nothing: each one carries its own number.
 *
 * @import {ServerEvent} from "./client.js"
 * @typedef {"idle"|"asking"|"connecting"|"live"|"finishing"} State
 * @typedef {{deviceId: string, filter: boolean, language: string|null, interim: boolean}} Choice
 * @typedef {{onState: (state: State) => void, onEvent: (event: ServerEvent) => void, onLevel: (level: number) => void,
 *   onFault: (code: string, message: string) => void, onInterrupted: (interrupted: boolean) => void}} Handlers
 */

import { TranscriptionClient } from "./client.js";
import { Microphone, MicrophoneError } from "./microphone.js";

const BYTES_PER_SAMPLE = 2;

export class Recorder {
  /** @type {State} */ #state = "idle";
  /** @type {Microphone|null} */ #microphone = null;
  /** @type {TranscriptionClient|null} */ #client = null;
  #number = 0;
  #bytes = 0;
  #rate = 1;

  /**
   * @param {{stream: string|URL, worklet: string|URL}} urls
   * @param {Handlers} handlers
   */
  constructor(urls, handlers) {
    this.urls = urls;
    this.handlers = handlers;
  }

  /** @returns {State} */
  get state() {
    return this.#state;
  }

  /** Seconds of audio taken in this session. */
  get seconds() {
    return this.#bytes / BYTES_PER_SAMPLE / this.#rate;
  }

  /**
   * Begin; call it from a click or key press.
   *
   * @param {Choice} choice
   */
  async start(choice) {
    if (this.#state !== "idle") return;
    this.#number += 1;
    const mine = this.#number;
    this.#bytes = 0;
    this.#enter("asking");
    const microphone = new Microphone(this.urls.worklet, {
      onFrame: (samples, level) => this.#frame(mine, samples, level),
      onInterrupted: (interrupted) => mine === this.#number && this.handlers.onInterrupted(interrupted),
      onLost: () => mine === this.#number && this.#fail("mic_unplugged", ""),
    });
    // The client holds the audio until it is opened and the server is ready.
    const client = new TranscriptionClient(this.urls.stream, {
      onEvent: (event) => mine === this.#number && this.#receive(event),
      onEnd: (fault) => mine === this.#number && this.#ended(fault),
    });
    this.#microphone = microphone;
    this.#client = client;
    try {
      await microphone.start(choice);
    } catch (error) {
      if (mine === this.#number) this.#fail(codeOf(error), String(error));
      return;
    }
    if (mine !== this.#number) {
      await microphone.stop(); // stopped while the browser was still asking
      return;
    }
    this.#rate = microphone.sampleRate;
    this.#enter("connecting");
    client.open({ sample_rate: microphone.sampleRate, language: choice.language, interim: choice.interim });
  }

  /** End the recording and wait for the rest of the answers; `onState("idle")` says when. */
  async stop() {
    if (this.#state === "asking") {
      this.#ended(null);
    } else if (this.#state === "connecting" || this.#state === "live") {
      this.#enter("finishing");
      const mine = this.#number;
      await this.#microphone?.stop();
      if (mine === this.#number) this.#client?.finish();
    }
  }

  /** Leave at once: the page goes away. */
  abandon() {
    this.#client?.abandon();
  }

  /** The browser says that the network is gone; the socket would notice only minutes later. */
  networkLost() {
    this.#client?.fail("lost", "The browser is offline.");
  }

  /** @param {Choice} choice the new microphone; the session goes on */
  async changeMicrophone(choice) {
    if (this.#state !== "live" && this.#state !== "connecting") return;
    const mine = this.#number;
    try {
      await this.#microphone?.change(choice);
    } catch (error) {
      // The old microphone goes on.
      if (mine === this.#number) this.handlers.onFault(codeOf(error), String(error));
    }
  }

  /** Go on after an interruption by the system; call it from a click. */
  async resume() {
    await this.#microphone?.resume();
  }

  /**
   * @param {number} mine
   * @param {ArrayBuffer} samples
   * @param {number} level
   */
  #frame(mine, samples, level) {
    if (mine !== this.#number || !this.#client) return;
    this.#bytes += samples.byteLength;
    this.#client.send(samples);
    this.handlers.onLevel(level);
  }

  /** @param {ServerEvent} event */
  #receive(event) {
    if (event.type === "ready" && this.#state === "connecting") this.#enter("live");
    this.handlers.onEvent(event);
  }

  /**
   * @param {string} code
   * @param {string} message
   */
  #fail(code, message) {
    if (this.#state === "live") {
      this.handlers.onFault(code, message);
      this.stop(); // what was said until now is still answered
      return;
    }
    const client = this.#client;
    this.#ended({ code, message });
    client?.abandon();
  }

  /** @param {{code: string, message: string}|null} fault */
  #ended(fault) {
    this.#number += 1; // whatever still comes belongs to nobody
    const microphone = this.#microphone;
    this.#microphone = this.#client = null;
    microphone?.stop();
    this.#enter("idle");
    if (fault) this.handlers.onFault(fault.code, fault.message);
  }

  /** @param {State} state */
  #enter(state) {
    this.#state = state;
    this.handlers.onState(state);
  }
}

/**
 * @param {unknown} error
 * @returns {string}
 */
function codeOf(error) {
  return error instanceof MicrophoneError ? error.code : "mic_failed";
}
