// The heads that attend from the query, best first.

import { el, fill } from "./dom.js";
import { roving, setStop } from "./keys.js";
import { visible } from "./letters.js";
import { mailed } from "./source.js";

/**
 * @param {{choose: (head: string) => void}} act
 */
export function headList(act) {
  const list = el("div", { class: "head-list", role: "group", "aria-label": "Heads that attend from here, best first" });
  const filter = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", placeholder: "Find a head: L18H6", "aria-label": "Find a head", spellcheck: "false" }));
  const decided = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Only heads in which this decides" }));
  const element = el("div", { class: "heads-here" }, mailed ? null : el("div", { class: "controls" }, filter, decided), list);
  roving(list);
  /** @type {import("./source.js").Explanation|null} */
  let explanation = null;
  /** @type {string|null} */
  let chosen = null;
  filter.addEventListener("input", () => draw());
  decided.addEventListener("change", () => draw());
  filter.addEventListener("keydown", (event) => {
    const name = filter.value.trim().toUpperCase();
    if (event.key === "Enter" && /^L\d+H\d+$/.test(name)) act.choose(name);
  });

  function show(/** @type {import("./source.js").Explanation} */ given, /** @type {string|null} */ head) {
    const same = explanation === given;
    [explanation, chosen] = [given, head];
    if (same) return mark();
    choices(given);
    draw();
  }

  /** What decides in some head can be chosen. */
  function choices(/** @type {import("./source.js").Explanation} */ { edges }) {
    const counts = new Map();
    for (const { decides } of edges) counts.set(decides, (counts.get(decides) ?? 0) + 1);
    const before = decided.value;
    const option = (/** @type {string} */ value, /** @type {string} */ text) => el("option", { value, text });
    fill(decided, option("", "whatever decides"),
      ...[...counts].map(([name, count]) => option(name, `${name} decides (${count})`)));
    decided.value = counts.has(before) ? before : "";
  }

  function draw() {
    if (!explanation) return;
    const { tokens, edges } = explanation;
    const wanted = filter.value.trim().toUpperCase();
    const told = edges.filter((edge) => edge.head.startsWith(wanted) && (!decided.value || edge.decides === decided.value));
    fill(list, ...onePerHead(told).map((edge) =>
      el("button", { type: "button", class: "head-row", data: { head: edge.head, rove: "" }, on: { click: () => act.choose(edge.head) } },
        el("span", { class: "line" },
          el("strong", { text: edge.head }),
          el("span", { class: "name", text: visible(tokens[edge.key]) }),
          el("span", { class: "amount", text: edge.attention.toFixed(2) }),
          el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: `${100 * edge.attention}%` } }))),
        el("span", { class: "sentence", text: edge.sentence }))));
    if (!told.length) {
      const said = `${wanted || "No such head"} is not among the ${edges.length} heads that attend most. Enter looks at it all the same.`;
      fill(list, el("p", { class: "hint", text: said }));
    }
    mark();
  }

  function mark() {
    const buttons = /** @type {HTMLElement[]} */ ([...list.querySelectorAll("[data-head]")]);
    for (const button of buttons) {
      const on = button.dataset.head === chosen;
      button.classList.toggle("chosen", on);
      button.setAttribute("aria-pressed", String(on));
    }
    if (!list.contains(document.activeElement)) setStop(buttons, Math.max(0, buttons.findIndex((one) => one.dataset.head === chosen)));
  }

  return { element, show };
}

/**
 * The best edge of each head.
 * @param {import("./source.js").Edge[]} edges
 */
function onePerHead(edges) {
  return edges.filter((edge, i) => edges.findIndex((one) => one.head === edge.head) === i);
}
