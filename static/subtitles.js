/**
 * Finished lines as plain text and as SubRip subtitles; pure functions.
 *
 * @typedef {{text: string, start: number, end: number}} Line times in seconds since the first start
 */

/**
 * @param {number} seconds
 * @returns {string} "0:07", "12:30", "1:02:03"
 */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const tail = `${m}:${String(s).padStart(2, "0")}`;
  return h ? `${h}:${tail.padStart(5, "0")}` : tail;
}

/**
 * @param {number} seconds
 * @returns {string} "00:01:02,345"
 */
export function subtitleTime(seconds) {
  const ms = Math.max(0, Math.round(seconds * 1000));
  const parts = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60, Math.floor(ms / 1000) % 60];
  return `${parts.map((part) => String(part).padStart(2, "0")).join(":")},${String(ms % 1000).padStart(3, "0")}`;
}

/**
 * @param {Line[]} lines
 * @returns {string} one line each
 */
export function asText(lines) {
  return lines.map((line) => `${line.text}\n`).join("");
}

/**
 * @param {Line[]} lines
 * @returns {string} a SubRip file
 */
export function asSrt(lines) {
  return lines
    .map((line, i) => `${i + 1}\n${subtitleTime(line.start)} --> ${subtitleTime(line.end)}\n${line.text}\n`)
    .join("\n");
}
