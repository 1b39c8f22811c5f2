/**
 * Runs on the audio thread: 128-sample blocks in, 50-ms frames of 16-bit samples out.
 *
 * Each frame is posted as `{samples: ArrayBuffer, level: number}`; the buffer is transferred, not copied. `level` is the
 * root mean square of the frame, 0..1. A message `"flush"` posts what is left of the last frame, then `{flushed: true}`.
 * Knows nothing of sockets, pages or sample rates other than the one of its own context.
 */

const FRAME_S = 0.05;

class CaptureProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    /** @type {Int16Array} */
    this.frame = new Int16Array(Math.round(sampleRate * FRAME_S));
    this.filled = 0;
    this.energy = 0;
    this.open = true;
    this.port.onmessage = (message) => {
      if (message.data !== "flush") return;
      this.post();
      this.open = false;
      this.port.postMessage({ flushed: true });
    };
  }

  /**
   * @param {Float32Array[][]} inputs one input, mixed to mono by the node
   * @returns {boolean} false lets the browser drop the processor
   */
  process(inputs) {
    const block = inputs[0]?.[0];
    if (block && this.open) {
      for (let i = 0; i < block.length; i += 1) {
        const value = Math.max(-1, Math.min(1, block[i]));
        this.energy += value * value;
        this.frame[this.filled] = Math.round(value * (value < 0 ? 32768 : 32767));
        this.filled += 1;
        if (this.filled === this.frame.length) this.post();
      }
    }
    return this.open;
  }

  /** Hand over the samples gathered so far and begin a new frame. */
  post() {
    if (this.filled === 0) return;
    const samples = this.frame.slice(0, this.filled).buffer;
    const level = Math.sqrt(this.energy / this.filled);
    this.filled = 0;
    this.energy = 0;
    this.port.postMessage({ samples, level }, [samples]);
  }
}

registerProcessor("capture", CaptureProcessor);
