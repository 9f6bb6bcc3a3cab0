// The heads that attend from the query, best first.

/** @import { Explanation } from "./source.js" */
import { el, fill, hint, option } from "./dom.js";
import { roving, setStop } from "./keys.js";
import { visible } from "./letters.js";
import { mailed } from "./source.js";

/** @param {(head: string) => void} choose */
export function headList(choose) {
  const list = el("div", { class: "head-list", role: "group", "aria-label": "Heads that attend from here, best first" });
  const filter = el("input", { type: "search", placeholder: "Find a head: L18H6", "aria-label": "Find a head", spellcheck: "false" });
  const decided = el("select", { "aria-label": "Only heads in which this decides" });
  const element = el("div", { class: "heads-here" }, mailed ? null : el("div", { class: "controls" }, filter, decided), list);
  roving(list);
  let explanation = /** @type {Explanation|null} */ (null);
  let chosen = /** @type {string|null} */ (null);
  filter.addEventListener("input", draw);
  decided.addEventListener("change", draw);
  filter.addEventListener("keydown", (event) => {
    const name = filter.value.trim().toUpperCase();
    if (event.key === "Enter" && /^L\d+H\d+$/.test(name)) choose(name);
  });

  function show(/** @type {Explanation} */ given, /** @type {string|null} */ head) {
    const same = explanation === given;
    [explanation, chosen] = [given, head];
    if (same) return mark();
    choices(given);
    draw();
  }

  /** What decides in some head can be chosen. */
  function choices(/** @type {Explanation} */ { edges }) {
    const counts = new Map();
    for (const { decides } of edges) counts.set(decides, (counts.get(decides) ?? 0) + 1);
    const before = decided.value;
    fill(decided, option("", "whatever decides"), ...[...counts].map(([name, count]) => option(name, `${name} decides (${count})`)));
    decided.value = counts.has(before) ? before : "";
  }

  function draw() {
    if (!explanation) return;
    const { tokens, edges } = explanation;
    const wanted = filter.value.trim().toUpperCase();
    const told = edges.filter((edge) => edge.head.startsWith(wanted) && (!decided.value || edge.decides === decided.value));
    const onePerHead = told.filter((edge, i) => told.findIndex((one) => one.head === edge.head) === i);
    fill(list, ...onePerHead.map((edge) =>
      el("button", { type: "button", class: "head-row", data: { head: edge.head, rove: "" }, on: { click: () => choose(edge.head) } },
        el("span", { class: "line" },
          el("strong", { text: edge.head }),
          el("span", { class: "name", text: visible(tokens[edge.key]) }),
          el("span", { class: "amount", text: edge.attention.toFixed(2) }),
          el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: `${100 * edge.attention}%` } }))),
        el("span", { class: "sentence", text: /^.*? (?:because of|in spite of) [^.]*\./.exec(edge.sentence)?.[0] ?? edge.sentence }))));
    if (!told.length) {
      fill(list, hint(`${wanted || "No such head"} is not among the ${edges.length} heads that attend most. Enter looks at it all the same.`));
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
