/**
 * The microphone as a stream of 16-bit frames; no DOM, no sockets.
 *
 * `start` must be called from a click or key press: Safari lets an audio context run only then. The context asks for
 * 16 kHz and takes the device's own rate where the browser refuses (Firefox); `sampleRate` says which, and the server
 * resamples. Calls and screen locks suspend the context on phones: `onInterrupted(true)` tells, `resume` goes on.
 *
 * @typedef {{onFrame: (samples: ArrayBuffer, level: number) => void, onInterrupted: (interrupted: boolean) => void,
 *   onLost: () => void}} MicrophoneHandlers
 */

const WANTED_RATE = 16_000;
const STALL_MS = 2_500;
const FLUSH_TIMEOUT_MS = 500;

/** A fault with the code under which `messages.js` explains it. */
export class MicrophoneError extends Error {
  /**
   * @param {string} code
   * @param {string} [message]
   */
  constructor(code, message = "") {
    super(message);
    this.code = code;
  }
}

/** @type {Record<string, string>} */
const CODE_OF_ERROR = {
  NotAllowedError: "mic_refused",
  SecurityError: "mic_refused",
  NotFoundError: "mic_missing",
  NotReadableError: "mic_busy",
  AbortError: "mic_busy",
  OverconstrainedError: "mic_gone",
};

/** @returns {string|null} why this page cannot have a microphone at all: a code, or null if it can */
export function whyUnavailable() {
  if (!navigator.mediaDevices?.getUserMedia) return window.isSecureContext ? "mic_unsupported" : "mic_insecure";
  return "AudioWorkletNode" in window ? null : "mic_unsupported";
}

/** @returns {Promise<MediaDeviceInfo[]>} inputs; their labels are empty until the microphone was allowed once */
export async function listMicrophones() {
  if (whyUnavailable()) return [];
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter((device) => device.kind === "audioinput" && device.deviceId !== "communications");
}

export class Microphone {
  /** @type {AudioContext|null} */ #context = null;
  /** @type {AudioWorkletNode|null} */ #node = null;
  /** @type {MediaStreamAudioSourceNode|null} */ #source = null;
  /** @type {MediaStream|null} */ #stream = null;
  #framesSeen = 0;
  #framesAtCheck = 0;
  #watchdog = 0;

  /**
   * @param {string|URL} workletUrl
   * @param {MicrophoneHandlers} handlers
   */
  constructor(workletUrl, handlers) {
    this.workletUrl = workletUrl;
    this.handlers = handlers;
  }

  /** Samples per second of the frames; 0 before `start`. */
  get sampleRate() {
    return this.#context?.sampleRate ?? 0;
  }

  /**
   * Begin to capture.
   *
   * @param {{deviceId: string, filter: boolean}} choice "" takes the default device; `filter` lets the browser remove
   *   echo and noise, which helps with loudspeakers and costs accuracy otherwise
   * @throws {MicrophoneError}
   */
  async start(choice) {
    const unavailable = whyUnavailable();
    if (unavailable) throw new MicrophoneError(unavailable);
    const first = makeContext(WANTED_RATE); // before the first await, while the click still counts
    this.#context = first;
    first.resume(); // no wait: it may only settle once the microphone is allowed
    try {
      this.#stream = await getStream(choice);
      await this.#connect(first);
    } catch (error) {
      await this.stop();
      throw asMicrophoneError(error);
    }
    this.#watchdog = setInterval(() => this.#checkFlow(), STALL_MS);
  }

  /**
   * Go on with another device in the same session.
   *
   * @param {{deviceId: string, filter: boolean}} choice
   * @throws {MicrophoneError}
   */
  async change(choice) {
    if (!this.#context || !this.#node) return;
    try {
      const stream = await getStream(choice);
      const source = this.#context.createMediaStreamSource(stream);
      this.#release();
      this.#stream = stream;
      this.#attach(source);
    } catch (error) {
      throw asMicrophoneError(error);
    }
  }

  /** Go on after an interruption; call it from a click. */
  async resume() {
    await this.#context?.resume();
  }

  /** Hand over the last frame, then let go of the device. */
  async stop() {
    clearInterval(this.#watchdog);
    if (this.#node && this.#context?.state === "running") await flushed(this.#node.port);
    this.#release();
    this.#node?.disconnect();
    const context = this.#context;
    this.#node = this.#context = null;
    if (context && context.state !== "closed") await context.close();
  }

  /** @param {AudioContext} context */
  async #connect(context) {
    await context.audioWorklet.addModule(this.workletUrl);
    let source;
    try {
      source = context.createMediaStreamSource(/** @type {MediaStream} */ (this.#stream));
    } catch (error) {
      if (context.sampleRate !== WANTED_RATE) throw error;
      await context.close(); // Firefox does not resample between devices and contexts
      this.#context = makeContext(undefined);
      await this.#connect(this.#context);
      return;
    }
    this.#context = context;
    context.onstatechange = () => this.#stateChanged(context);
    this.#node = new AudioWorkletNode(context, "capture", {
      numberOfOutputs: 0,
      channelCount: 1,
      channelCountMode: "explicit",
    });
    this.#node.port.onmessage = ({ data }) => {
      if (!data.samples) return;
      this.#framesSeen += 1;
      this.handlers.onFrame(data.samples, data.level);
    };
    this.#attach(source);
    await context.resume();
  }

  /** @param {MediaStreamAudioSourceNode} source */
  #attach(source) {
    this.#source = source;
    source.connect(/** @type {AudioWorkletNode} */ (this.#node));
    for (const track of source.mediaStream.getAudioTracks()) track.onended = () => this.handlers.onLost();
  }

  #release() {
    this.#source?.disconnect();
    for (const track of this.#stream?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.#source = this.#stream = null;
  }

  /** @param {AudioContext} context */
  #stateChanged(context) {
    if (context !== this.#context) return;
    this.handlers.onInterrupted(context.state !== "running");
  }

  /** After a call iOS says "running" while the clock stands still; a new context gets it going again. */
  async #checkFlow() {
    const stalled = this.#framesSeen === this.#framesAtCheck;
    this.#framesAtCheck = this.#framesSeen;
    const old = this.#context;
    if (!stalled || !old || old.state !== "running" || !this.#stream) return;
    old.onstatechange = null;
    this.#source?.disconnect();
    this.#context = makeContext(old.sampleRate);
    await old.close();
    await this.#connect(this.#context);
  }
}

/**
 * @param {number|undefined} sampleRate
 * @returns {AudioContext}
 */
function makeContext(sampleRate) {
  try {
    return new AudioContext({ sampleRate, latencyHint: "interactive" });
  } catch {
    return new AudioContext({ latencyHint: "interactive" }); // the rate is outside what this browser does
  }
}

/**
 * @param {{deviceId: string, filter: boolean}} choice
 * @returns {Promise<MediaStream>}
 */
function getStream({ deviceId, filter }) {
  return navigator.mediaDevices.getUserMedia({
    audio: {
      ...(deviceId ? { deviceId: { exact: deviceId } } : {}),
      channelCount: { ideal: 1 },
      echoCancellation: filter,
      noiseSuppression: filter,
      autoGainControl: filter,
    },
  });
}

/**
 * @param {MessagePort} port
 * @returns {Promise<void>} settled when the last frame was posted, or after `FLUSH_TIMEOUT_MS`
 */
function flushed(port) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, FLUSH_TIMEOUT_MS);
    port.addEventListener("message", ({ data }) => {
      if (!data.flushed) return;
      clearTimeout(timer);
      resolve();
    });
    port.postMessage("flush");
  });
}

/**
 * @param {unknown} error
 * @returns {MicrophoneError}
 */
function asMicrophoneError(error) {
  if (error instanceof MicrophoneError) return error;
  if (error instanceof DOMException) {
    return new MicrophoneError(CODE_OF_ERROR[error.name] ?? "mic_failed", error.message);
  }
  return new MicrophoneError("mic_failed", String(error));
}
