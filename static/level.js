/**
 * The level meter: the loudness of the last seconds as thin strokes, the newest on the right.
 *
 * Drawn once per frame of audio, so it moves only while the microphone runs.
 */

const STROKE_PX = 2;
const STEP_PX = 4;
const FLOOR_DB = -60;
const FRAMES_PER_VALUE = 5; // the number for screen readers changes four times a second

export class LevelMeter {
  /** @type {number[]} newest last, 0..1 */ #levels = [];
  #frames = 0;

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    new ResizeObserver(() => this.#draw()).observe(canvas);
    new MutationObserver(() => this.#draw()).observe(document.body, { attributeFilter: ["class"] });
  }

  /** @param {number} level root mean square, 0..1 */
  show(level) {
    const db = 20 * Math.log10(Math.max(level, 1e-6));
    const height = Math.max(0, 1 - db / FLOOR_DB);
    this.#levels.push(height);
    this.#levels.splice(0, this.#levels.length - 400);
    this.#frames += 1;
    if (this.#frames % FRAMES_PER_VALUE === 0) {
      this.canvas.setAttribute("aria-valuenow", String(Math.round(height * 100)));
    }
    this.#draw();
  }

  reset() {
    this.#levels = [];
    this.canvas.setAttribute("aria-valuenow", "0");
    this.#draw();
  }

  #draw() {
    const { canvas, context } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (width === 0) return;
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const style = getComputedStyle(canvas);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const n = Math.floor(width / STEP_PX);
    for (let i = 0; i < n; i += 1) {
      const level = this.#levels[this.#levels.length - n + i];
      context.fillStyle = style.getPropertyValue(level === undefined ? "--ts-line-strong" : "--ts-accent");
      // Bent: speech fills the height, the hum of a room stays low.
      const stroke = level === undefined ? STROKE_PX : Math.max(STROKE_PX, Math.min(1, 2 * level ** 2) * height);
      context.fillRect(i * STEP_PX, (height - stroke) / 2, STROKE_PX, stroke);
    }
  }
}
