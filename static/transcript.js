/**
 * Events of a session in, text on the page out.
 *
 * One list item per utterance: committed text solid, tentative text grey, replaced by the final. Text reaches the DOM
 * as `textContent` only. The list follows the newest line unless the reader has scrolled up. Several sessions follow
 * one another on one clock: `begin` says where the next one starts.
 *
 * @import {ServerEvent, Final, Partial, Segment} from "./client.js"
 * @import {Line} from "./subtitles.js"
 */

import { clock } from "./subtitles.js";

/** Distance from the end, in pixels, within which the list still counts as followed. */
const FOLLOW_SLACK_PX = 48;

/** One utterance on the page. */
class Entry {
  /**
   * @param {number} start seconds on the page's clock
   */
  constructor(start) {
    this.start = start;
    this.end = start;
    /** @type {Line[]} finished text; empty while the utterance is open */
    this.lines = [];
    this.item = document.createElement("li");
    this.item.className = "ts-line";
    this.item.dataset.open = "";
    const time = document.createElement("time");
    time.textContent = clock(start);
    const text = document.createElement("p");
    text.dir = "auto";
    this.committed = document.createElement("span");
    this.tentative = document.createElement("span");
    this.tentative.className = "ts-tentative";
    text.append(this.committed, this.tentative);
    this.item.append(time, text);
  }

  /**
   * @param {string} committed
   * @param {string} tentative
   */
  show(committed, tentative) {
    // Untouched text nodes keep the reader's selection.
    if (this.committed.textContent !== committed) this.committed.textContent = committed;
    if (this.tentative.textContent !== tentative) this.tentative.textContent = tentative;
  }

  /** @param {Line[]} lines */
  close(lines) {
    this.lines = lines;
    delete this.item.dataset.open;
  }
}

export class Transcript {
  /** @type {Entry[]} */ #entries = [];
  /** @type {Map<number, Entry>} open utterances of the running session */ #open = new Map();
  #offset = 0;

  /**
   * @param {{scroller: HTMLElement, list: HTMLElement, latest: HTMLButtonElement, announcer: HTMLElement,
   *   onChange: () => void}} parts
   */
  constructor(parts) {
    this.parts = parts;
    this.following = true;
    parts.scroller.addEventListener("scroll", () => this.#noticeScroll(), { passive: true });
    parts.latest.addEventListener("click", () => this.#follow());
    // The last line must stay in sight when a notice or a rotation changes the height.
    new ResizeObserver(() => this.#settle()).observe(parts.scroller);
  }

  /** @returns {boolean} */
  get empty() {
    return this.#entries.length === 0;
  }

  /** @returns {Line[]} finished text in order of time */
  get lines() {
    return this.#entries.flatMap((entry) => entry.lines);
  }

  /**
   * A new session; its time 0 is `offset` seconds on the page's clock.
   *
   * @param {number} offset
   */
  begin(offset) {
    this.#open.clear();
    this.#offset = offset;
    this.#follow();
  }

  /** @param {ServerEvent} event */
  apply(event) {
    switch (event.type) {
      case "speech_started":
        this.#entry(event.utterance, event.start);
        break;
      case "partial":
        this.#partial(event);
        break;
      case "final":
        this.#final(event);
        break;
      default:
        return;
    }
    this.#settle();
    this.parts.onChange();
  }

  /** The session is over: what was still open keeps the text it had, so that no word is lost. */
  end() {
    for (const entry of this.#open.values()) {
      const text = `${entry.committed.textContent}${entry.tentative.textContent}`.trim();
      if (text) {
        entry.item.dataset.cut = "";
        entry.close([{ text, start: entry.start, end: entry.end }]);
      } else {
        this.#remove(entry);
      }
    }
    this.#open.clear();
    this.parts.onChange();
  }

  clear() {
    for (const entry of this.#entries.filter((entry) => !this.#isOpen(entry))) this.#remove(entry);
    this.parts.announcer.textContent = "";
    this.#follow();
    this.parts.onChange();
  }

  /** @param {Partial} event */
  #partial(event) {
    const entry = this.#entry(event.utterance, event.start);
    entry.end = this.#offset + event.end;
    entry.show(event.committed.trimStart(), event.committed ? event.tentative : event.tentative.trimStart());
  }

  /** @param {Final} event */
  #final(event) {
    const entry = this.#entry(event.utterance, event.start);
    const text = event.text.trim();
    this.#open.delete(event.utterance);
    if (!text) {
      this.#remove(entry);
      return;
    }
    entry.show(text, "");
    if (event.language) entry.item.lang = event.language;
    const segments = event.segments?.length ? event.segments : [event];
    entry.close(segments.map((segment) => this.#line(segment)));
    this.parts.announcer.textContent = text;
  }

  /**
   * @param {Segment} segment
   * @returns {Line}
   */
  #line({ text, start, end }) {
    return { text: text.trim(), start: this.#offset + start, end: this.#offset + end };
  }

  /**
   * @param {number} utterance
   * @param {number} start seconds on the session's clock
   * @returns {Entry}
   */
  #entry(utterance, start) {
    let entry = this.#open.get(utterance);
    if (!entry) {
      entry = new Entry(this.#offset + start);
      this.#open.set(utterance, entry);
      this.#entries.push(entry);
      this.parts.list.append(entry.item);
    }
    return entry;
  }

  /** @param {Entry} entry */
  #isOpen(entry) {
    return [...this.#open.values()].includes(entry);
  }

  /** @param {Entry} entry */
  #remove(entry) {
    entry.item.remove();
    this.#entries.splice(this.#entries.indexOf(entry), 1);
  }

  #noticeScroll() {
    const { scroller, latest } = this.parts;
    this.following = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < FOLLOW_SLACK_PX;
    latest.hidden = this.following;
  }

  #follow() {
    this.following = true;
    this.parts.latest.hidden = true;
    this.#settle();
  }

  #settle() {
    const { scroller } = this.parts;
    if (this.following) scroller.scrollTop = scroller.scrollHeight;
  }
}
