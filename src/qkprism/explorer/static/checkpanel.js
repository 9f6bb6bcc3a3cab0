// What the check says of a contrast: mistakes, notes, and whether something simple tells the sides apart.

import { el, fill } from "./dom.js";
import { counted } from "./letters.js";

export function checkPanel() {
  const body = el("div", { "aria-live": "polite" });
  const element = el("div", {}, el("h2", { text: "What the check says" }), body);

  function show(/** @type {import("./source.js").Checked|null} */ found) {
    if (!found) return void fill(body, el("p", { class: "hint", text: "It cannot be read yet." }));
    const said = found.mistakes.length ? `${counted(found.mistakes.length, "mistake")} to mend first.` :
      `${counted(found.n, "prompt")}, and nothing that keeps this from being run.`;
    fill(body, el("p", { text: said }),
      ...(found.mistakes.length ? [el("ul", { class: "problem listed" },
        ...found.mistakes.map((one) => el("li", { text: `line ${one.line}: ${one.message}` })))] : []),
      ...(found.notes.length ? [el("ul", { class: "listed" }, ...found.notes.map((text) => el("li", { text })))] : []),
      ...(found.balance.length ? balance(found) : [el("p", { class: "hint", text: "The balance check needs two prompts with keys of both sides, and many to say much." })]));
  }

  return { element, show };
}

/** @param {import("./source.js").Checked} found */
function balance(found) {
  const head = ["of a key", "AUC", "± error", "verdict"].map((text) => el("th", { scope: "col", text }));
  const verdict = (/** @type {import("./source.js").Balance} */ row) =>
    !row.tells ? "does not tell" : found.declared.includes(row.predictor) ? "tells, as declared" : "tells the sides apart";
  return [
    el("h3", { text: "Could a head do it by something simpler?" }),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...found.balance.map((row) => el("tr", { class: row.tells ? "best" : "" },
        el("td", { text: row.predictor }), el("td", { text: (row.auc ?? 0).toFixed(2) }),
        el("td", { text: (row.error ?? 0).toFixed(2) }), el("td", { text: verdict(row) })))))),
    el("p", { class: "hint", text: "How often this alone ranks a positive key above a negative one: 0.5 is a coin, 1 gives the answer away." }),
  ];
}
