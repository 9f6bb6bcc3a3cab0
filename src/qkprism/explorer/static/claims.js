// What a paper says beside what a run found: a row a claim, with the verdict and the rule that it follows.

import { el } from "./dom.js";
import { pieces } from "./pieces.js";

/** @param {import("./source.js").Found} found */
export function claimList(found) {
  return el("section", { class: "card spaced", "aria-label": "The paper and this run" },
    el("h2", { text: `The paper and this run${found.run ? `: ${found.run}` : ""}` }),
    el("ul", { class: "claims" }, ...found.claims.map((claim) =>
      el("li", {},
        el("p", { class: "verdict", data: { verdict: claim.verdict }, text: claim.verdict || "–" }),
        el("div", {},
          el("p", {}, el("b", { text: claim.what }), claim.paper ? el("span", { class: "hint", text: ` The paper: ${claim.paper}.` }) : null),
          el("p", {}, ...pieces(claim.here)),
          claim.rule ? el("p", { class: "hint", text: `It agrees if ${claim.rule}.` }) : null)))));
}
