// What is looked at, all of it in the address: it can be sent, marked and gone back to.

/**
 * @typedef {{view: string, text: string, query: number|null, key: number|null, target: number|null, head: string|null,
 *   score: string|null, across: string|null, up: string|null, other: string|null, part: string|null, run: string|null,
 *   features: string|null, kind: string|null, amount: string|null, together: string|null, template: string|null,
 *   method: string|null, table: string|null, figure: string|null}} State
 */

/** The views, the first of them unless the address says otherwise. */
export const VIEWS = new Map([
  ["start", "Start"], ["why", "Why this token"], ["whatif", "What if"], ["heads", "Heads"],
  ["contrast", "Try a contrast"], ["run", "Run"],
]);
const PLACES = ["query", "key", "target"];
let said = location.hash;

/**
 * The state that a hash says.
 * @param {string} hash
 * @returns {State}
 */
export function parseState(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (/** @type {string} */ name) => (/^\d{1,7}$/.test(words.get(name) ?? "") ? Number(words.get(name)) : null);
  const text = words.get("text") ?? "";
  const view = words.get("view") ?? (text ? "why" : "start");
  return {
    view: VIEWS.has(view) ? view : "start", text,
    query: number("query"), key: number("key"), target: number("target"),
    head: words.get("head"), score: words.get("score"), across: words.get("across"), up: words.get("up"), other: words.get("other"),
    part: words.get("part"), run: words.get("run"), features: words.get("features"), kind: words.get("kind"),
    amount: words.get("amount"), together: words.get("together"), template: words.get("template"), method: words.get("method"),
    table: words.get("table"), figure: words.get("figure"),
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
    words.set(name, PLACES.includes(name) ? String(value) : wellFormed(String(value)));
  }
  return `#${words}`;
}

/**
 * A text that can be in an address: a lone surrogate cannot.
 * @param {string} text
 */
function wellFormed(text) {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

/**
 * The address of another state, as `go` would have it from the first.
 * @param {Partial<State>} change
 */
export function addressOf(change) {
  return formatState({ ...parseState(""), ...change });
}

/** The state now. */
export function stateNow() {
  return parseState(said);
}

/**
 * Look at something else; the address says it, and back returns.
 * @param {Partial<State>} change
 * @param {{replace?: boolean}} [how] `replace`: back does not return to what is now, as for each step of a slider
 */
export function go(change, how = {}) {
  const hash = formatState({ ...parseState(said), ...change });
  if (hash === said) return;
  said = hash;
  try {
    if (how.replace) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
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
