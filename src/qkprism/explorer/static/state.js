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
const WORDS = ["head", "score", "across", "up", "other", "part", "run", "features", "kind", "amount", "together", "template",
  "method", "table", "figure"];
let said = location.hash;

/** The state that a hash says. @type {(hash: string) => State} */
export function parseState(hash) {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  const number = (/** @type {string} */ name) => (/^\d{1,7}$/.test(found.get(name) ?? "") ? Number(found.get(name)) : null);
  const text = found.get("text") ?? "";
  const view = found.get("view") ?? (text ? "why" : "start");
  const rest = [...PLACES.map((name) => [name, number(name)]), ...WORDS.map((name) => [name, found.get(name)])];
  return { view: VIEWS.has(view) ? view : "start", text, ...Object.fromEntries(rest) };
}

/** The hash that says a state; a lone surrogate cannot be in an address. @type {(state: State) => string} */
export function formatState(state) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== null && value !== "") words.set(name, String(value).replace(/\p{Surrogate}/gu, "\ufffd"));
  }
  return `#${words}`;
}

/** The address of another state, as `go` would have it from the first. @type {(change: Partial<State>) => string} */
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
 * @param {{replace?: boolean, again?: boolean}} [how] `replace`: back does not return to what is now, as for each step of a
 *   slider; `again`: look anew where nothing changes, for a question that failed
 */
export function go(change, how = {}) {
  const hash = formatState({ ...stateNow(), ...change });
  if (hash === said && !how.again) return;
  try {
    if (how.replace || hash === said) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
  } catch {
    // a page within a notebook has no address of its own
  }
  said = hash;
  dispatchEvent(new Event("statechange"));
}

/** Call this with the state now and whenever it changes. @param {(state: State) => void} look */
export function onState(look) {
  const now = () => look(stateNow());
  addEventListener("statechange", now);
  addEventListener("popstate", () => {
    said = location.hash;
    now();
  });
  now();
}
