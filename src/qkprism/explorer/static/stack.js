// The logits of the most attended keys as stacks of parts, each part drawn from its mean over the tokens after the
// first that the query sees: a bar to the right is what a part gives this key more than it gives the mean token. These
// are the shares that the sentence tells.

/** @import { Act } from "./keys.js" */
/** @import { Row } from "./source.js" */
import { el, fill, svg } from "./dom.js";
import { placed, setStop } from "./keys.js";
import { signed, visible } from "./letters.js";

const WIDE = 1000; // of the drawing; it stretches

/** @typedef {{places: number[], parts: {name: string, color: string, values: number[]}[], logits: number[]}} Stacks */
/** @typedef {{low: number, high: number}} Reach */

/**
 * The keys that are drawn, in the order of the text, and what is drawn of them; one key also if it is not among the most attended.
 * @type {(row: Row, most: number, key: number|null) => Stacks}
 */
function stacksOf(row, most, key) {
  const seen = row.logits.map((_, place) => place).filter((place) => row.logits[place] !== null);
  const best = [...seen].sort((a, b) => row.attention[b] - row.attention[a]).slice(0, most);
  if (key !== null && seen.includes(key) && !best.includes(key)) best.push(key);
  const places = best.sort((a, b) => a - b);
  const later = seen.length > 1 ? seen.filter((place) => place > 0) : seen;
  const of = (/** @type {(number|null)[]} */ values) => {
    const mean = later.reduce((sum, place) => sum + (values[place] ?? 0), 0) / later.length;
    return places.map((place) => (values[place] ?? 0) - mean);
  };
  const parts = row.parts.map(({ name, color, values }) => ({ name, color, values: of(values) }));
  const [first, position] = ["first token", "position"].map((name) => parts.find((part) => part.name === name));
  if (places[0] === 0 && first && position) { // the place of the first token is to be the first
    first.values[0] += position.values[0];
    position.values[0] = 0;
  }
  return { places, parts: parts.filter((part) => part.values.some((x) => Math.abs(x) > 1e-6)), logits: of(row.logits) };
}

/** @param {Act} act `choose` takes a key */
export function stackView(act) {
  const list = el("div", { class: "stack", role: "group", "aria-label": "Keys and the parts of their logits" });
  const legend = el("ul", { class: "legend", "aria-label": "Parts" });
  const element = el("div", {}, legend, list);
  placed(list, act);

  /** @type {(row: Row, tokens: string[], key: number|null, most: number) => void} */
  function show(row, tokens, key, most) {
    const held = list.contains(document.activeElement) ? Number(/** @type {HTMLElement} */ (document.activeElement).dataset.place) : null;
    const stacks = stacksOf(row, most, key);
    const reach = reachOf(stacks);
    const meaning = new Map(row.parts.map((part) => [part.name, part.meaning]));
    fill(legend, ...stacks.parts.map(({ name, color }) =>
      el("li", { title: meaning.get(name) },
        el("span", { class: "swatch", style: { background: color }, "aria-hidden": "true" }),
        el("span", { text: name }))));
    const buttons = stacks.places.map((place, i) => keyRow(row, tokens, stacks, i, place === key, reach));
    fill(list, ...buttons);
    const at = Math.max(0, stacks.places.indexOf(held ?? key ?? -1));
    setStop(buttons, at);
    if (held !== null) buttons[at]?.focus();
  }

  function point(/** @type {number|null} */ place) {
    for (const one of list.children) {
      one.classList.toggle("pointed", place !== null && /** @type {HTMLElement} */ (one).dataset.place === String(place));
    }
  }

  return { element, show, point };
}

/** How far bars go to the left and to the right. @type {(stacks: Stacks) => Reach} */
function reachOf(stacks) {
  let [low, high] = [-0.5, 0.5];
  stacks.places.forEach((_, i) => {
    const values = stacks.parts.map((part) => part.values[i]);
    low = Math.min(low, values.filter((x) => x < 0).reduce((a, b) => a + b, 0), stacks.logits[i]);
    high = Math.max(high, values.filter((x) => x > 0).reduce((a, b) => a + b, 0), stacks.logits[i]);
  });
  const room = 0.03 * (high - low);
  return { low: low - room, high: high + room };
}

/** One key: its token, attention and stack.
 *  @type {(row: Row, tokens: string[], stacks: Stacks, i: number, chosen: boolean, reach: Reach) => HTMLElement} */
function keyRow(row, tokens, stacks, i, chosen, reach) {
  const place = stacks.places[i];
  const told = stacks.parts.map((part) => `${part.name} ${signed(part.values[i])}`).join(", ");
  const attention = row.attention[place];
  return el("button", {
    type: "button", class: chosen ? "key-row key" : "key-row", data: { place, rove: "" }, "aria-pressed": String(chosen),
    title: `logit ${signed(stacks.logits[i])} from the mean token: ${told}`,
  },
    el("span", { class: "place", text: String(place) }),
    el("span", { class: place === row.query ? "name query" : "name", text: visible(tokens[place]) }),
    el("span", { class: "amount", text: attention.toFixed(3) }),
    el("span", { class: "meter", "aria-hidden": "true" },
      el("span", { style: { width: `${Math.min(100, 100 * attention)}%` } })),
    el("span", { class: "unseen-words", text: ` attention. From the mean token: logit ${signed(stacks.logits[i])}: ${told}` }),
    stackBars(stacks, i, reach));
}

/** @type {(stacks: Stacks, i: number, reach: Reach) => SVGElement} */
function stackBars(stacks, i, reach) {
  const x = (/** @type {number} */ value) => (WIDE * (value - reach.low)) / (reach.high - reach.low);
  const upright = (/** @type {number} */ value, /** @type {string} */ kind) => svg("line", { x1: x(value), x2: x(value), y1: 0, y2: 24, class: kind });
  let [left, right] = [0, 0];
  const bars = stacks.parts.map(({ name, color, values }) => {
    const value = values[i];
    const from = value < 0 ? left + value : right;
    if (value < 0) left += value;
    else right += value;
    return svg("rect", { x: x(from), width: Math.abs(x(value) - x(0)), y: 3, height: 18, fill: color, class: "bar" },
      svg("title", { text: `${name} ${signed(value)}` }));
  });
  return svg("svg", { viewBox: `0 0 ${WIDE} 24`, preserveAspectRatio: "none", class: "bars", "aria-hidden": "true" },
    ...bars, upright(0, "zero"), upright(stacks.logits[i], "halo"), upright(stacks.logits[i], "logit"));
}
