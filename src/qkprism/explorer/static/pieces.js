// Sentences with links: heads open, and numbers lead to what they are made of. What stands in `backticks` is code.

import { el } from "./dom.js";
import { headLink, stateLink } from "./headlink.js";

/**
 * @param {import("./source.js").Piece[]} sentence
 * @returns {(string|HTMLElement)[]}
 */
export function pieces(sentence) {
  return sentence.flatMap((piece) => {
    if (typeof piece === "string") return piece.split("`").map((text, i) => (i % 2 ? el("code", { text }) : text));
    if ("head" in piece) return headLink(piece.head);
    const there = { table: null, figure: null, head: null, ...piece.go };
    return stateLink(piece.text, there, { class: /\d/.test(piece.text) ? "link number" : "link",
      title: there.table ? `Where this is from: the table ${there.table}` : null });
  });
}
