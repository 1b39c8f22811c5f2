/**
 * Entry of the page: finds the parts that the frame holds, and wires recorder, transcript and engine panel.
 *
 * All addresses derive from the page's own, so that a sub-path or https needs no setting.
 *
 * @import {Stats} from "./stats.js"
 * @import {Choice, State} from "./recorder.js"
 */

import { LevelMeter } from "./level.js";
import { explain } from "./messages.js";
import { listMicrophones, whyUnavailable } from "./microphone.js";
import { EnginePanel } from "./panel.js";
import { Recorder } from "./recorder.js";
import { StatsFeed } from "./stats.js";
import { asSrt, asText, clock } from "./subtitles.js";
import { Transcript } from "./transcript.js";

/** Silence below this for `MUTED_S` at the start is no room but a muted microphone: one step of 16 bits. */
const MUTED_LEVEL = 1 / 32768;
const MUTED_S = 4;
const SETTINGS_KEY = "tickscribe";

/** @type {Record<State, {label: string, status: string}>} */
const STATES = {
  idle: { label: "Start", status: "Stopped" },
  asking: { label: "Allow the microphone", status: "Waiting for the microphone" },
  connecting: { label: "Connecting", status: "Connecting" },
  live: { label: "Stop", status: "Transcribing" },
  finishing: { label: "Finishing", status: "Finishing the last words" },
};

/** The page of one browser tab. */
class Page {
  #elapsed = 0; // seconds of earlier sessions on the transcript's clock
  #heardSomething = false;
  /** @type {string[]} */ #languages = [];
  /** @type {WakeLockSentinel|null} */ #wakeLock = null;
  #faultShown = "";

  /**
   * @param {HTMLElement} root
   * @param {URL} base address of the page, with a slash at the end
   */
  constructor(root, base) {
    this.root = root;
    /** @type {Record<string, any>} */
    this.refs = {};
    for (const element of root.querySelectorAll("[data-ref]")) {
      this.refs[/** @type {HTMLElement} */ (element).dataset.ref ?? ""] = element;
    }
    const { refs } = this;
    this.transcript = new Transcript({
      scroller: refs.scroller,
      list: refs.lines,
      latest: refs.latest,
      announcer: refs.announcer,
      onChange: () => this.#transcriptChanged(),
    });
    this.meter = new LevelMeter(refs.level);
    this.panel = new EnginePanel(refs);
    this.recorder = new Recorder(
      { stream: socketUrl(base, "v1/stream"), worklet: new URL("static-app/capture-worklet.js", base) },
      {
        onState: (state) => this.#stateChanged(state),
        onEvent: (event) => {
          if (event.type === "ready") this.#offerLanguages(event.languages ?? []);
          else if (event.type === "warning") this.#notify(event.code, event.message);
          else this.transcript.apply(event);
        },
        onLevel: (level) => this.#level(level),
        onFault: (code, message) => this.#fault(code, message),
        onInterrupted: (interrupted) =>
          interrupted ? this.#notify("mic_interrupted") : this.#withdraw("mic_interrupted"),
      },
    );
    this.feed = new StatsFeed(
      { stream: socketUrl(base, "v1/stats/stream"), ready: new URL("readyz", base) },
      { onStats: (stats) => this.#stats(stats), onState: (state) => this.panel.showFeed(state) },
    );
  }

  start() {
    this.#loadSettings();
    this.#listen();
    this.#offerMicrophones();
    this.#transcriptChanged();
    this.feed.start();
    this.refs.record.disabled = false; // from here on it does something
    const unavailable = whyUnavailable();
    if (unavailable) this.#notify(unavailable);
  }

  #listen() {
    const { refs, recorder } = this;
    refs.record.addEventListener("click", () => this.#toggle());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.repeat) return;
      event.preventDefault();
      this.#toggle();
    });
    refs.microphone.addEventListener("change", () => {
      this.#saveSettings();
      recorder.changeMicrophone(this.#choice());
    });
    for (const name of ["language", "interim", "filter"])
      refs[name].addEventListener("change", () => this.#saveSettings());
    refs.copy.addEventListener("click", () => this.#copy());
    refs.text.addEventListener("click", () => this.#download("transcript.txt", asText(this.transcript.lines)));
    refs.srt.addEventListener("click", () => this.#download("transcript.srt", asSrt(this.transcript.lines)));
    refs.clear.addEventListener("click", () => this.#clear());
    refs.noticeClose.addEventListener("click", () => this.#withdraw(this.#faultShown));
    refs.noticeAction.addEventListener("click", () => this.#act());
    navigator.mediaDevices?.addEventListener("devicechange", () => this.#offerMicrophones());
    window.addEventListener("offline", () => recorder.networkLost());
    window.addEventListener("online", () => this.feed.retry());
    window.addEventListener("pagehide", () => recorder.abandon());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && recorder.state === "live") this.#stayAwake();
    });
  }

  #toggle() {
    if (this.recorder.state === "idle") {
      this.#withdraw(this.#faultShown);
      this.#heardSomething = false;
      this.transcript.begin(this.#elapsed);
      this.recorder.start(this.#choice());
    } else {
      this.recorder.stop();
    }
  }

  /** The button of the notice: what it does depends on the fault shown. */
  #act() {
    if (this.#faultShown === "mic_interrupted") this.recorder.resume();
    else if (this.recorder.state === "idle") this.#toggle();
  }

  /** @returns {Choice} */
  #choice() {
    const { refs } = this;
    return {
      deviceId: refs.microphone.value,
      filter: refs.filter.checked,
      language: refs.language.value || null,
      interim: refs.interim.checked,
    };
  }

  /** @param {State} state */
  #stateChanged(state) {
    const { refs } = this;
    const { label, status } = STATES[state];
    this.root.dataset.state = state;
    refs.recordLabel.textContent = label;
    refs.record.disabled = state === "finishing";
    refs.status.textContent = status;
    for (const name of ["language", "interim", "filter"]) refs[name].disabled = state !== "idle";
    if (state === "live") {
      this.#offerMicrophones(); // their names are told only once the microphone is allowed
      this.#stayAwake();
    }
    if (state === "idle") {
      this.transcript.end();
      this.#elapsed += this.recorder.seconds;
      this.meter.reset();
      this.#wakeLock?.release();
      this.#wakeLock = null;
    }
  }

  /** @param {number} level */
  #level(level) {
    const { seconds } = this.recorder;
    this.meter.show(level);
    this.refs.clock.textContent = clock(this.#elapsed + seconds);
    if (level > MUTED_LEVEL && !this.#heardSomething) {
      this.#heardSomething = true;
      this.#withdraw("muted");
    } else if (!this.#heardSomething && seconds > MUTED_S && this.#faultShown === "") {
      this.#notify("muted");
    }
  }

  /** @param {Stats} stats */
  #stats(stats) {
    this.panel.show(stats);
    if (stats.languages) this.#offerLanguages(stats.languages);
    this.#withdraw("loading");
    this.#withdraw("unreachable");
  }

  /**
   * @param {string} code
   * @param {string} message
   */
  #fault(code, message) {
    // A server that is starting refuses the socket just as one that is gone; the feed knows which it is.
    const loading = code === "unreachable" && this.panel.feed === "loading";
    this.#notify(loading ? "loading" : code, message);
  }

  /**
   * @param {string} code
   * @param {string} [message]
   */
  #notify(code, message) {
    const { refs } = this;
    const { title, text, action } = explain(code, message);
    this.#faultShown = code;
    refs.notice.dataset.code = code;
    refs.noticeTitle.textContent = title;
    refs.noticeText.textContent = text;
    refs.noticeAction.textContent = action;
    refs.noticeAction.hidden = !action;
    refs.notice.hidden = false;
  }

  /** @param {string} code taken back only if it is the one shown */
  #withdraw(code) {
    if (code !== this.#faultShown) return;
    this.#faultShown = "";
    this.refs.notice.hidden = true;
  }

  #transcriptChanged() {
    const { refs, transcript } = this;
    refs.empty.hidden = !transcript.empty;
    refs.clock.hidden = transcript.empty && this.recorder.state === "idle";
    refs.actions.hidden = transcript.lines.length === 0;
  }

  async #offerMicrophones() {
    const { microphone } = this.refs;
    const devices = (await listMicrophones()).filter((device) => device.deviceId && device.deviceId !== "default");
    const wanted = microphone.value || readSettings().microphone || "";
    const options = devices.map((device, i) => new Option(device.label || `Microphone ${i + 1}`, device.deviceId));
    microphone.replaceChildren(new Option("Default microphone", ""), ...options);
    microphone.value = devices.some((device) => device.deviceId === wanted) ? wanted : "";
  }

  /** @param {string[]} languages codes; one or none means that there is nothing to choose */
  #offerLanguages(languages) {
    if (languages.join() === this.#languages.join()) return;
    this.#languages = languages;
    const { language, languageField } = this.refs;
    const names = new Intl.DisplayNames(["en"], { type: "language" });
    const options = languages
      .map((code) => ({ code, name: names.of(code) ?? code }))
      .sort((a, b) => a.name.localeCompare(b.name))
      .map(({ code, name }) => new Option(name, code));
    const wanted = language.value || readSettings().language || "";
    language.replaceChildren(new Option("Detect", ""), ...options);
    language.value = languages.includes(wanted) ? wanted : "";
    languageField.hidden = languages.length < 2;
  }

  #clear() {
    this.transcript.clear();
    if (this.recorder.state === "idle") this.#elapsed = 0;
    this.refs.clock.textContent = clock(this.#elapsed);
  }

  async #copy() {
    const { copy } = this.refs;
    const text = asText(this.transcript.lines);
    const done = await navigator.clipboard.writeText(text).then(
      () => "Copied",
      () => "Not allowed", // the browser's own rule for pages without focus or permission
    );
    copy.textContent = done;
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }

  /**
   * @param {string} name
   * @param {string} content
   */
  #download(name, content) {
    const url = URL.createObjectURL(new Blob([content], { type: "text/plain;charset=utf-8" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  /** A phone that locks its screen takes the microphone away. */
  async #stayAwake() {
    if (!navigator.wakeLock || this.#wakeLock?.released === false) return;
    this.#wakeLock = await navigator.wakeLock.request("screen").catch(() => null); // refused on low battery
  }

  #loadSettings() {
    const { interim, filter } = readSettings();
    if (interim !== undefined) this.refs.interim.checked = interim;
    if (filter !== undefined) this.refs.filter.checked = filter;
  }

  #saveSettings() {
    const { deviceId, language, interim, filter } = this.#choice();
    try {
      localStorage.setItem(SETTINGS_KEY, JSON.stringify({ microphone: deviceId, language, interim, filter }));
    } catch {
      // Private windows may refuse storage; the choice then lasts as long as the page.
    }
  }
}

/** @returns {{microphone?: string, language?: string|null, interim?: boolean, filter?: boolean}} */
function readSettings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS_KEY) ?? "{}");
  } catch {
    return {}; // refused or damaged: begin anew
  }
}

/**
 * @param {URL} base
 * @param {string} path
 * @returns {URL} the socket beside the page: ws for http, wss for https
 */
export function socketUrl(base, path) {
  const url = new URL(path, base);
  url.protocol = base.protocol === "https:" ? "wss:" : "ws:";
  return url;
}

/** @returns {URL} address of the page without query and fragment, with a slash at the end */
export function pageBase() {
  const url = new URL(window.location.href);
  url.search = url.hash = "";
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return url;
}

/**
 * Called by the frame once its part of the page exists.
 *
 * @param {HTMLElement} element
 */
export function mountPage(element) {
  const root = /** @type {HTMLElement} */ (element.querySelector(".ts-page"));
  new Page(root, pageBase()).start();
}
