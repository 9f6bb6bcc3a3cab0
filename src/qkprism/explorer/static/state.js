// What is looked at, all of it in the address: it can be sent, marked and gone back to.

/**
 * @typedef {{view: string, text: string, query: number|null, head: string|null, key: number|null, score: string|null}}
 *   State
 */

const NUMBERS = ["query", "key"];
let said = location.hash;

/**
 * The state that a hash says.
 * @param {string} hash
 * @returns {State}
 */
export function parseState(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (/** @type {string} */ name) => (/^\d{1,7}$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null);
  return {
    view: words.get("view") === "heads" ? "heads" : "why",
    text: words.get("text") ?? "",
    query: number("query"),
    head: words.get("head"),
    key: number("key"),
    score: words.get("score"),
  };
}

/**
 * The hash that says a state.
 * @param {State} state
 */
export function formatState(state) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === null || value === "") continue;
    words.set(name, NUMBERS.includes(name) ? String(value) : value.toWellFormed?.() ?? value);
  }
  return `#${words}`;
}

/**
 * Look at something else; the address says it, and back returns.
 * @param {Partial<State>} change
 */
export function go(change) {
  const hash = formatState({ ...parseState(said), ...change });
  if (hash === said) return;
  said = hash;
  try {
    history.pushState(null, "", hash);
  } catch {
    // a page within a notebook has no address of its own
  }
  dispatchEvent(new Event("statechange"));
}

/**
 * Call this with the state now and whenever it changes.
 * @param {(state: State) => void} look
 */
export function onState(look) {
  const now = () => look(parseState(said));
  addEventListener("statechange", now);
  addEventListener("popstate", () => {
    said = location.hash;
    now();
  });
  now();
}
