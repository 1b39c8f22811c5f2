/**
 * The API tab: fills in the addresses of this server and lets the examples be copied.
 */

import { pageBase, socketUrl } from "./app.js";

/**
 * Called by the frame once its part of the page exists.
 *
 * @param {HTMLElement} element
 */
export function mountApi(element) {
  const base = pageBase();
  for (const place of element.querySelectorAll("[data-stream-url]")) {
    place.textContent = socketUrl(base, "v1/stream").href;
  }
  for (const place of element.querySelectorAll("[data-worklet-url]")) {
    place.textContent = new URL("static-app/capture-worklet.js", base).href;
  }
  for (const button of element.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = button.closest("section")?.querySelector("pre")?.textContent ?? "";
      button.textContent = await navigator.clipboard.writeText(code).then(
        () => "Copied",
        () => "Not allowed", // pages without focus or a secure address
      );
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
  }
}
