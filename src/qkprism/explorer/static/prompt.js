// The form in which any text is written, with some to try.

import { button, el } from "./dom.js";

const EXAMPLES = [
  "The hat is in box O, the jam is in box Z. The jam is in box",
  "When Mary and John went to the store, John gave a drink to",
  "The keys to the old cabinet in the hall",
  "def area(width, height):\n    return width *",
];

/**
 * @param {string} id of the text field: there is one in each view
 * @param {string} verb what the button says
 * @param {(text: string) => void} submit
 */
export function promptForm(id, verb, submit) {
  const prompt = el("textarea", { id, rows: "2", spellcheck: "false", placeholder: "Any text", "aria-describedby": `${id}-hint` });
  const form = el("form", { class: "ask" },
    el("label", { for: id, text: "Text" }), prompt,
    el("button", { type: "submit", class: "primary", text: verb }),
    el("p", { id: `${id}-hint`, class: "hint", text: "Enter asks, Shift+Enter starts a new line." }));
  const examples = el("p", { class: "examples" }, el("span", { text: "Try: " }), ...EXAMPLES.map((text) => button(text, () => {
    prompt.value = text;
    submit(text);
  })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(prompt.value);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit(prompt.value);
  });

  /** Show a text, unless another is being written. */
  function show(/** @type {string} */ text) {
    if (document.activeElement !== prompt || prompt.value === "") prompt.value = text;
  }

  return { elements: [form, examples], show };
}
