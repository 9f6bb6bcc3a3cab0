// The line that says what is going on, and what went wrong.

import { fill } from "./dom.js";

const SLOW = 150; // milliseconds before a wait is told

/** @type {(sentence: string, kind?: string) => void} */
function say(sentence, kind = "") {
  const place = /** @type {HTMLElement} */ (document.getElementById("status"));
  place.className = kind;
  document.getElementById("main")?.setAttribute("aria-busy", String(kind === "busy"));
  fill(place, sentence);
}

export const status = {
  busy: (/** @type {string} */ sentence) => say(sentence, "busy"),
  done: () => say(""),
  fail: (/** @type {unknown} */ error) => say(error instanceof Error ? error.message : String(error), "problem"),
};

/**
 * A place for one work at a time: the next one ends what is still asked for the last. What takes long is told, and so is what fails.
 * @returns {(sentence: string, work: (signal: AbortSignal) => unknown) => Promise<void>}
 */
export function workplace() {
  let asking = new AbortController();
  return async (sentence, work) => {
    asking.abort();
    const { signal } = (asking = new AbortController());
    const slow = setTimeout(() => status.busy(sentence), SLOW);
    try {
      await work(signal);
      if (!signal.aborted) status.done();
    } catch (error) {
      if (!signal.aborted) status.fail(error);
    } finally {
      clearTimeout(slow);
    }
  };
}
