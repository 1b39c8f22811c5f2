/**
 * Every fault that the page shows, as a heading, a sentence that says what to do, and the way on.
 *
 * @typedef {{title: string, text: string, action: ""|"Reconnect"|"Try again"|"Resume"}} Explanation
 */

const KEPT = "What was transcribed so far is kept.";

/** @type {Record<string, Explanation>} */
const EXPLANATIONS = {
  mic_refused: {
    title: "The microphone is blocked for this page.",
    text: "Click the icon beside the address, allow the microphone, then press Start again. If it is allowed there, look in the system’s privacy settings.",
    action: "Try again",
  },
  mic_missing: {
    title: "No microphone was found.",
    text: "Plug one in or switch on a headset, then press Start again.",
    action: "Try again",
  },
  mic_busy: {
    title: "The microphone does not answer.",
    text: "Another program may be using it. Close that program or choose another microphone, then press Start again.",
    action: "Try again",
  },
  mic_gone: {
    title: "The chosen microphone is no longer there.",
    text: "Choose another one below, then press Start again.",
    action: "",
  },
  mic_unplugged: {
    title: "The microphone was disconnected.",
    text: `${KEPT} Plug it in again or choose another one, then press Start.`,
    action: "",
  },
  mic_unsupported: {
    title: "This browser cannot give its microphone to a page.",
    text: "Use a current Firefox, Chrome, Edge or Safari.",
    action: "",
  },
  mic_insecure: {
    title: "Browsers give the microphone to secure pages only.",
    text: "This page came over plain http from another machine. Open it as http://localhost on the machine itself, or start the server with --ssl-certfile and --ssl-keyfile and open it as https.",
    action: "",
  },
  mic_failed: {
    title: "The microphone could not be started.",
    text: "Choose another microphone or load the page again.",
    action: "Try again",
  },
  mic_interrupted: {
    title: "The system has paused the microphone.",
    text: "That happens during a call or when the screen locks. Press Resume to go on.",
    action: "Resume",
  },
  lost: {
    title: "The connection to the server was lost.",
    text: `${KEPT} Check the network, then reconnect to go on.`,
    action: "Reconnect",
  },
  unreachable: {
    title: "The server cannot be reached.",
    text: "Check that it is running and that the network is up, then reconnect.",
    action: "Reconnect",
  },
  no_answer: {
    title: "The server does not answer.",
    text: `${KEPT} It may be busy or gone; reconnect to go on.`,
    action: "Reconnect",
  },
  too_slow: {
    title: "The connection is too slow for live audio.",
    text: `${KEPT} More than half a minute of speech was waiting to be sent. Move to a better network, then reconnect.`,
    action: "Reconnect",
  },
  server_full: {
    title: "The server is full.",
    text: "All its places are taken by other speakers. Try again in a moment, or start the server with a larger --max-sessions.",
    action: "Try again",
  },
  loading: {
    title: "The server is still loading its model.",
    text: "This takes a moment after a start. The page notices by itself when the server is ready.",
    action: "",
  },
  overloaded: {
    title: "The server cannot keep up at the moment.",
    text: `${KEPT} Too many people speak at once for this machine; try again in a moment.`,
    action: "Try again",
  },
  idle_timeout: {
    title: "No sound came for a while, so the session was closed.",
    text: `${KEPT} Press Start to go on.`,
    action: "",
  },
  slow_client: {
    title: "This page fell behind the server.",
    text: `${KEPT} The network or the browser was too slow to take the text; reconnect to go on.`,
    action: "Reconnect",
  },
  shutting_down: {
    title: "The server is shutting down.",
    text: `${KEPT} Reconnect once it is back.`,
    action: "Reconnect",
  },
  internal: {
    title: "The server had a fault with this session.",
    text: `${KEPT} Other speakers are not affected; reconnect to go on.`,
    action: "Reconnect",
  },
  muted: {
    title: "The microphone is silent.",
    text: "Not the faintest sound arrives. Check its mute switch, or choose another microphone below.",
    action: "",
  },
};

/**
 * @param {string} code
 * @param {string} [message] what the server said; shown where this page has no words of its own
 * @returns {Explanation}
 */
export function explain(code, message = "") {
  return (
    EXPLANATIONS[code] ?? {
      title: "The session ended with an error.",
      text: `${message || code} ${KEPT}`,
      action: "Reconnect",
    }
  );
}
