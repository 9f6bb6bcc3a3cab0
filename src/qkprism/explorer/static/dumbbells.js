// Shares before and after, a row each, with the range of the controls behind them: the picture of What if.

import { el, svg } from "./dom.js";
import { visible } from "./letters.js";

/** @typedef {{name: string, kind: string, before: number, after: number, low: number, high: number}} Change */

/** @type {(changes: Change[], label: string, digits: number) => HTMLElement} */
export function dumbbells(changes, label, digits) {
  const most = Math.max(0.01, ...changes.map((one) => Math.max(one.before, one.after, one.high)));
  const reach = Math.min(1, 1.04 * most);
  return el("div", { class: "dumbbells" },
    el("ul", { class: "legend", "aria-hidden": "true" },
      legendItem("before", dot("before", "50%", "50%")), legendItem("after", dot("after", "50%", "50%")),
      legendItem("under controls", svg("rect", { x: 2, y: 3, width: 12, height: 10, class: "range" }))),
    el("ol", { class: "changes", "aria-label": label }, ...changes.map((one) => changeRow(one, reach, digits)),
      el("li", { class: "change hint", "aria-hidden": "true" }, el("span", {}),
        el("span", { class: "axis-ends" }, el("span", { text: "0" }), el("span", { text: reach.toFixed(2) })))));
}

/** @type {(text: string, sample: SVGElement) => HTMLElement} */
function legendItem(text, sample) {
  return el("li", {}, svg("svg", { viewBox: "0 0 16 16", class: "sample" }, sample), el("span", { text }));
}

/** @type {(kind: string, x: string, y: string) => SVGElement} */
function dot(kind, x, y) {
  return svg("circle", { cx: x, cy: y, r: 5, class: `dot ${kind}` });
}

/** @type {(one: Change, reach: number, digits: number) => HTMLElement} */
function changeRow(one, reach, digits) {
  const told = (/** @type {number} */ value) => value.toFixed(digits);
  const share = (/** @type {number} */ value) => (100 * Math.min(value, reach)) / reach;
  const at = (/** @type {number} */ value) => `${share(value)}%`;
  const picture = svg("svg", { class: "dumbbell", "aria-hidden": "true" },
    svg("rect", { x: at(one.low), width: `${Math.max(0.7, share(one.high) - share(one.low))}%`, y: 3, height: 12, class: "range" }),
    svg("line", { x1: at(one.before), x2: at(one.after), y1: 9, y2: 9, class: "between" }),
    dot("before", at(one.before), "9"), dot("after", at(one.after), "9"));
  return el("li", { class: `change ${one.kind}` },
    el("span", { class: "name", text: visible(one.name), title: one.kind }), picture,
    el("span", { class: "amount", text: `${told(one.before)} → ${told(one.after)}` }),
    el("span", { class: "hint", text: one.low < one.high ? `controls ${told(one.low)} to ${told(one.high)}` : `control ${told(one.low)}` }));
}
