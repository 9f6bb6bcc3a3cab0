// A text as tokens: shaded by attention, with arcs from the query, and from and to the token that is pointed at.

import { el, fill, svg } from "./dom.js";
import { roving, setStop } from "./keys.js";
import { visible } from "./letters.js";
import { mailed } from "./source.js";

const ARCS = 6;
const FAINT = 0.02; // attention that gets no arc unless it is pointed at

/**
 * @typedef {{element: HTMLElement, show: (tokens: string[], query: number) => void,
 *   shade: (row: import("./source.js").Row|null, key: number|null) => void, point: (place: number|null) => void,
 *   link: (links: import("./source.js").Links|null) => void}} Tokens
 */

/**
 * @param {{choose: (place: number) => void, point: (place: number|null) => void}} act `choose` makes a token the query
 * @returns {Tokens}
 */
export function tokensView(act) {
  const arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  const line = el("div", { class: "tokens", role: "group", "aria-label": mailed ? "Tokens of the text" : "Tokens of the text. Choose one to ask from." });
  const element = el("div", { class: "text" }, arcs, line);
  /** @type {HTMLElement[]} */
  let buttons = [];
  /** @type {import("./source.js").Row|null} */
  let row = null;
  /** @type {string[]} */
  let shown = [];
  let query = 0;
  /** @type {number|null} */
  let chosen = null;
  /** @type {number|null} */
  let pointed = null;
  /** @type {import("./source.js").Links|null} */
  let links = null;
  let asked = 0;

  roving(line, { lines: true });
  const placeOf = (/** @type {Event} */ event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("[data-place]");
    return button ? Number(/** @type {HTMLElement} */ (button).dataset.place) : null;
  };
  line.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place !== null) act.choose(place);
  });
  for (const event of ["pointerover", "focusin"]) line.addEventListener(event, (e) => act.point(placeOf(e)));
  for (const event of ["pointerleave", "focusout"]) line.addEventListener(event, () => act.point(null));
  new ResizeObserver(soon).observe(line);

  /** Draw arcs before the next frame, once. */
  function soon() {
    if (!asked) asked = requestAnimationFrame(draw);
  }

  function show(/** @type {string[]} */ tokens, /** @type {number} */ from) {
    query = from;
    if (tokens.length !== shown.length || tokens.some((token, i) => token !== shown[i])) {
      shown = tokens;
      buttons = tokens.map((token, place) =>
        el("button", { type: "button", class: "token", data: { place, rove: "" }, text: visible(token) }));
      fill(line, ...buttons.flatMap((button, i) => (tokens[i].includes("\n") ? [button, el("br")] : [button])));
    }
    buttons.forEach((button, place) => {
      button.classList.toggle("query", place === query);
      button.setAttribute("aria-pressed", String(place === query));
    });
    if (!line.contains(document.activeElement)) setStop(buttons, query);
  }

  function shade(/** @type {import("./source.js").Row|null} */ given, /** @type {number|null} */ key) {
    [row, chosen] = [given, key];
    const most = row ? strongest(row) : 1;
    buttons.forEach((button, place) => {
      const seen = !row || row.logits[place] !== null;
      const attention = row ? row.attention[place] : 0;
      button.classList.toggle("unseen", !seen);
      button.classList.toggle("key", place === chosen);
      button.style.setProperty("--share", String(row && seen ? Math.min(1, attention / most) : 0));
      const told = row && seen ? `attention ${attention.toFixed(3)}` : row ? "not seen from the query" : "";
      button.title = `token ${place}${told ? `, ${told}` : ""}${mailed ? "" : ". Click: ask from here"}`;
      button.setAttribute("aria-label", `token ${place}: ${visible(shown[place])}${told ? `, ${told}` : ""}`);
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

  function link(/** @type {import("./source.js").Links|null} */ given) {
    links = given;
    soon();
  }

  function draw() {
    asked = 0;
    if (!row || !buttons[query]) return fill(arcs);
    const frame = element.getBoundingClientRect();
    const [down, right] = [element.scrollTop, element.scrollLeft];
    const boxOf = (/** @type {number} */ place) => {
      const box = buttons[place].getBoundingClientRect();
      return { x: box.left - frame.left + right + box.width / 2, y: box.top - frame.top + down + 2 };
    };
    const drawn = pointed !== null && links ? arcsAt(links, pointed) : arcsDrawn(row, query, chosen, pointed);
    fill(arcs, ...drawn.map(({ from, place, attention, kind }) => {
      const [a, b] = [boxOf(from), boxOf(place)];
      const lift = Math.min(34, 10 + 0.12 * Math.hypot(b.x - a.x, b.y - a.y));
      const top = Math.min(a.y, b.y) - lift;
      return svg("path", { d: `M${a.x} ${a.y} C${a.x} ${top} ${b.x} ${top} ${b.x} ${b.y}`, class: `arc ${kind}`, "stroke-width": 1 + 4 * attention });
    }));
  }

  return { element, show, shade, point, link };
}

/**
 * The largest attention but that of the first token, where heads rest.
 * @param {import("./source.js").Row} row
 */
export function strongest(row) {
  return Math.max(0.02, ...row.attention.slice(1).map((one, i) => (row.logits[i + 1] === null ? 0 : one)));
}

/** @typedef {{from: number, place: number, attention: number, kind: string}} Arc */

/**
 * Arcs to the most attended tokens; the one that is pointed at, or chosen, stands out.
 * @param {import("./source.js").Row} row
 * @param {number} query
 * @param {number|null} chosen
 * @param {number|null} pointed
 * @returns {Arc[]}
 */
function arcsDrawn(row, query, chosen, pointed) {
  const strong = pointed !== null && pointed !== query ? pointed : chosen;
  const best = row.attention
    .map((attention, place) => ({ from: query, place, attention, kind: place === strong ? "strong" : "" }))
    .filter((one) => one.place !== query && row.logits[one.place] !== null)
    .sort((a, b) => b.attention - a.attention);
  const drawn = best.slice(0, ARCS).filter((one) => one.attention >= FAINT && !one.kind);
  return [...drawn, ...best.filter((one) => one.kind)];
}

/**
 * Arcs from a token to those it attends to, and to it from those that attend to it.
 * @param {import("./source.js").Links} links
 * @param {number} at
 * @returns {Arc[]}
 */
function arcsAt(links, at) {
  return [
    ...links.into[at].map(([from, attention]) => ({ from, place: at, attention, kind: "into" })),
    ...links.out[at].map(([place, attention]) => ({ from: at, place, attention, kind: "strong" })),
  ];
}
