// What is looked at, all of it in the address: it can be sent, marked and gone back to.

/**
 * @typedef {{view: string, text: string, query: number|null, head: string|null, key: number|null, score: string|null}}
 *   State
 */

const NUMBERS = ["query", "key"];

/**
 * The state that a hash says.
 * @param {string} hash
 * @returns {State}
 */
export function parseState(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (/** @type {string} */ name) => (/^\d{1,7}$/.test(said.get(name) ?? "") ? Number(said.get(name)) : null);
  return {
    view: said.get("view") === "heads" ? "heads" : "why",
    text: said.get("text") ?? "",
    query: number("query"),
    head: said.get("head"),
    key: number("key"),
    score: said.get("score"),
  };
}

/**
 * The hash that says a state.
 * @param {State} state
 */
export function formatState(state) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === null || value === "") continue;
    said.set(name, NUMBERS.includes(name) ? String(value) : value.toWellFormed?.() ?? value);
  }
  return `#${said}`;
}

/**
 * Look at something else; the address says it, and back returns.
 * @param {Partial<State>} change
 */
export function go(change) {
  const hash = formatState({ ...parseState(location.hash), ...change });
  if (hash === location.hash) return;
  history.pushState(null, "", hash);
  dispatchEvent(new Event("statechange"));
}

/**
 * Call this with the state now and whenever it changes.
 * @param {(state: State) => void} look
 */
export function onState(look) {
  const now = () => look(parseState(location.hash));
  addEventListener("statechange", now);
  addEventListener("popstate", now);
  now();
}
