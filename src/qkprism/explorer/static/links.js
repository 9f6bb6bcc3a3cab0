// Links within the page: heads open, and numbers lead to what they are made of. What stands in `backticks` is code.

/** @import { Piece } from "./source.js" */
/** @import { State } from "./state.js" */
import { el } from "./dom.js";
import { addressOf, go } from "./state.js";

/** @param {string} head */
export function headLink(head) {
  return stateLink(head, { view: "heads", head });
}

/** A link to another state of the page. @type {(text: string, there: Partial<State>, how?: {class?: string, title?: string|null}) => HTMLElement} */
function stateLink(text, there, how = {}) {
  const link = el("a", { class: how.class ?? "link", href: addressOf(there), title: how.title, text });
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window
    event.preventDefault();
    go(there);
  });
  return link;
}

/** A sentence with its links. @type {(sentence: Piece[]) => (string|HTMLElement)[]} */
export function pieces(sentence) {
  return sentence.flatMap((piece) => {
    if (typeof piece === "string") return piece.split("`").map((text, i) => (i % 2 ? el("code", { text }) : text));
    if ("head" in piece) return headLink(piece.head);
    const there = { table: null, figure: null, head: null, ...piece.go };
    return stateLink(piece.text, there, { class: /\d/.test(piece.text) ? "link number" : "link",
      title: there.table ? `Where this is from: the table ${there.table}` : null });
  });
}
