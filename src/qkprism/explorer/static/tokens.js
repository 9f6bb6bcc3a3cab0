// A text as tokens: shaded by attention, with arcs from the query, and from and to the token that is pointed at; or with
// marks that a click gives.

/** @import { Act } from "./keys.js" */
/** @import { Links, Row } from "./source.js" */
import { el, fill, svg } from "./dom.js";
import { placed, setStop } from "./keys.js";
import { visible } from "./letters.js";
import { mailed } from "./source.js";

const ARCS = 6;
const FAINT = 0.02; // attention that gets no arc unless it is pointed at

/** @typedef {{sign: string, kind: string, told: string}} Mark each has a sign, a colour and a word, so that colour is never alone */
/** @typedef {{from: number, place: number, attention: number, kind: string}} Arc */

/** The tokens of a text as buttons. @param {string} label for who cannot see them @param {Act} act */
function tokenLine(label, act) {
  const line = el("div", { class: "tokens", role: "group", "aria-label": label });
  /** @type {HTMLElement[]} */
  let buttons = [];
  /** @type {string[]} */
  let shown = [];
  placed(line, act, { lines: true });

  /** Show tokens, of which the Tab key reaches one. */
  function show(/** @type {string[]} */ tokens, /** @type {number} */ at) {
    if (tokens.length !== shown.length || tokens.some((token, i) => token !== shown[i])) {
      shown = tokens;
      buttons = tokens.map((token, place) => el("button", { type: "button", class: "token", data: { place, rove: "" }, text: visible(token) }));
      fill(line, ...buttons.flatMap((button, i) => (tokens[i].includes("\n") ? [button, el("br")] : [button])));
      setStop(buttons, at);
    } else if (!line.contains(document.activeElement)) setStop(buttons, at);
    return buttons;
  }

  return { line, show };
}

/** @type {(button: HTMLElement, place: number, token: string, told: string, more?: string) => void} */
function tell(button, place, token, told, more = "") {
  button.title = `token ${place}${told ? `: ${told}` : ""}${more}`;
  button.setAttribute("aria-label", `token ${place}: ${visible(token)}${told ? `, ${told}` : ""}`);
}

/** Tokens with marks by place, shaded by shares. @param {string} label @param {(place: number) => void} choose */
export function markedTokens(label, choose) {
  const { line, show: showTokens } = tokenLine(label, { choose });
  const element = el("div", { class: "text marked-text" }, line);

  /** @type {(tokens: string[], marks: Map<number, Mark>, shares?: (number|null)[]) => void} */
  function show(tokens, marks, shares = []) {
    showTokens(tokens, 0).forEach((button, place) => {
      const mark = marks.get(place);
      button.className = mark ? `token marked ${mark.kind}` : "token";
      button.style.setProperty("--share", String(Math.min(1, shares[place] ?? 0)));
      button.dataset.sign = mark?.sign ?? "";
      tell(button, place, tokens[place], mark?.told ?? "");
    });
  }

  return { element, show };
}

/** @param {Act} act `choose` makes a token the query */
export function tokensView(act) {
  const arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  const { line, show: showTokens } = tokenLine(mailed ? "Tokens of the text" : "Tokens of the text. Choose one to ask from.", act);
  const element = el("div", { class: "text" }, arcs, line);
  /** @type {HTMLElement[]} */
  let buttons = [];
  let row = /** @type {Row|null} */ (null);
  let chosen = /** @type {number|null} */ (null);
  let pointed = /** @type {number|null} */ (null);
  let links = /** @type {Links|null} */ (null);
  let asked = 0;
  new ResizeObserver(soon).observe(line);

  /** Draw arcs before the next frame, once. */
  function soon() {
    if (!asked) asked = requestAnimationFrame(draw);
  }

  /** Show the tokens shaded by a row, with arcs to the keys it attends to, of which one stands out. */
  function show(/** @type {string[]} */ tokens, /** @type {Row} */ given, /** @type {number|null} */ key) {
    [row, chosen] = [given, key];
    const { query, logits, attention } = given;
    buttons = showTokens(tokens, query);
    const most = Math.max(FAINT, ...attention.filter((_, place) => place > 0 && logits[place] !== null)); // heads rest at the first
    buttons.forEach((button, place) => {
      const seen = logits[place] !== null;
      button.classList.toggle("query", place === query);
      button.setAttribute("aria-pressed", String(place === query));
      button.classList.toggle("unseen", !seen);
      button.classList.toggle("key", place === chosen);
      button.style.setProperty("--share", String(seen ? Math.min(1, attention[place] / most) : 0));
      tell(button, place, tokens[place], seen ? `attention ${attention[place].toFixed(3)}` : "not seen from the query", mailed ? "" : ". Click: ask from here");
    });
    draw();
  }

  function point(/** @type {number|null} */ place) {
    if (place === pointed) return;
    if (pointed !== null) buttons[pointed]?.classList.remove("pointed");
    pointed = place;
    if (pointed !== null) buttons[pointed]?.classList.add("pointed");
    soon();
  }

  function link(/** @type {Links|null} */ given) {
    links = given;
    soon();
  }

  function draw() {
    asked = 0;
    if (!row || !buttons[row.query]) return fill(arcs);
    const frame = element.getBoundingClientRect();
    const [down, right] = [element.scrollTop, element.scrollLeft];
    const boxOf = (/** @type {number} */ place) => {
      const box = buttons[place].getBoundingClientRect();
      return { x: box.left - frame.left + right + box.width / 2, y: box.top - frame.top + down + 2 };
    };
    const drawn = pointed !== null && links ? arcsAt(links, pointed) : arcsDrawn(row, pointed !== null && pointed !== row.query ? pointed : chosen);
    fill(arcs, ...drawn.map(({ from, place, attention, kind }) => {
      const [a, b] = [boxOf(from), boxOf(place)];
      const lift = Math.min(34, 10 + 0.12 * Math.hypot(b.x - a.x, b.y - a.y));
      const top = Math.min(a.y, b.y) - lift;
      return svg("path", { d: `M${a.x} ${a.y} C${a.x} ${top} ${b.x} ${top} ${b.x} ${b.y}`, class: `arc ${kind}`, "stroke-width": 1 + 4 * attention });
    }));
  }

  return { element, show, point, link };
}

/** Arcs to the most attended tokens, of which one stands out. @type {(row: Row, strong: number|null) => Arc[]} */
function arcsDrawn({ query, attention, logits }, strong) {
  const best = attention
    .map((share, place) => ({ from: query, place, attention: share, kind: place === strong ? "strong" : "" }))
    .filter((one) => one.place !== query && logits[one.place] !== null)
    .sort((a, b) => b.attention - a.attention);
  const drawn = best.slice(0, ARCS).filter((one) => one.attention >= FAINT && !one.kind);
  return [...drawn, ...best.filter((one) => one.kind)];
}

/** Arcs from a token to those it attends to, and to it from those that attend to it. @type {(links: Links, at: number) => Arc[]} */
function arcsAt(links, at) {
  return [
    ...links.into[at].map(([from, attention]) => ({ from, place: at, attention, kind: "into" })),
    ...links.out[at].map(([place, attention]) => ({ from: at, place, attention, kind: "strong" })),
  ];
}
