// Start: what this model and these runs are, in a few sentences that lead to their evidence, the picture that matters,
// what a paper says beside it, and the views that were pinned: this browser keeps them, and each is an address.

/** @import { Found, Palette, Piece } from "./source.js" */
/** @import { State } from "./state.js" */
import { button, el, fill, hint } from "./dom.js";
import { figurePlace } from "./figures.js";
import { pieces } from "./links.js";
import { columnOf, headMap } from "./map.js";
import { promptForm } from "./prompt.js";
import { ask, mailed } from "./source.js";
import { formatState, go, parseState, stateNow } from "./state.js";

const LEADING = 3; // sentences before the picture
const PINS = "qkprism pins";
const MOST_PINS = 100;

/** @param {Palette} palette */
export function startView(palette) {
  const sentences = el("div", { class: "sentences" });
  const map = headMap(palette, (head) => go({ view: "heads", head }));
  const caption = hint("");
  const title = el("h2");
  const drawn = figurePlace();
  const rest = el("div");
  const pins = pinList();
  const form = promptForm("start-prompt", "Ask why", (text) => go({ view: "why", text, query: null, key: null }));
  const picture = el("section", { class: "card spaced", "aria-label": "The picture" }, title, caption, map.element, drawn.element);
  const element = el("div", {},
    el("section", { class: "card", "aria-label": "What this is" }, sentences),
    mailed ? null : el("section", { class: "card spaced", "aria-label": "Ask" }, ...form.elements),
    pins.element, picture, rest);

  async function look(/** @type {State} */ state) {
    const start = await ask("start");
    const found = start.found ?? [];
    const [what, ...more] = start.sentences ?? [];
    const model = [what ?? [], start.hint ?? [], ...more].filter((one) => one.length);
    const each = Math.max(1, Math.floor(LEADING / found.length)); // of a run
    const first = (found.length ? found.flatMap((one) => one.sentences.slice(0, each)) : model).slice(0, LEADING);
    fill(sentences, ...first.map((one) => el("p", {}, ...pieces(one))), promptLinks(found.flatMap((one) => one.prompts)));
    pins.show();
    await showPicture(found, state); // what stands below it comes after it, so that nothing jumps
    fill(rest, ...found.map((one) => foundPart(one, first)), restPart(start.model ?? "", model.filter((one) => !first.includes(one))),
      ...found.filter((one) => one.claims.length).map(claimList));
  }

  /** The figure of a run that has one, else every head by its score. */
  async function showPicture(/** @type {Found[]} */ found, /** @type {State} */ state) {
    const own = found.find((one) => one.picture);
    const heads = await ask("heads", {});
    const column = columnOf(heads.columns, state.score);
    [map.element.hidden, drawn.element.hidden, picture.hidden] = [Boolean(own), !own, !own && !column];
    if (own) {
      fill(title, `${own.run}: ${own.picture}`);
      fill(caption, "Drag to look closer; a double click goes back. More figures are in Run.");
      return drawn.show(own.run, own.picture);
    }
    if (!column) return;
    fill(title, `Every head by ${column.name}`);
    fill(caption, `${column.caption} Click a head to open it.`);
    map.show(heads, column);
    map.mark(state.head ?? "");
  }

  return { element, wait: "Reading the runs …", look };
}

/** The prompts that runs kept, each to be explained. @param {Found["prompts"]} prompts */
function promptLinks(prompts) {
  if (!prompts.length) return null;
  return el("p", {}, "See why, in a prompt: ", ...prompts.map(({ text, query, head }) =>
    button(text, () => go({ view: "why", text, query, head, key: null }), { class: "link prompt-link" })));
}

/** What else a run found than what is `told` above. @type {(found: Found, told: Piece[][]) => HTMLElement|null} */
function foundPart(found, told) {
  return restPart(`${found.run}: ${found.what}`, found.sentences.filter((one) => !told.includes(one)),
    ...found.notes.map((note) => el("p", { class: "hint" }, ...pieces(note))));
}

/** @type {(title: string, sentences: Piece[][], ...more: HTMLElement[]) => HTMLElement|null} */
function restPart(title, sentences, ...more) {
  if (!sentences.length && !more.length) return null;
  return el("section", { class: "card spaced sentences", "aria-label": title }, el("h2", { text: title }), ...more,
    el("ul", {}, ...sentences.map((sentence) => el("li", {}, ...pieces(sentence)))));
}

/** What a paper says beside what a run found: a row a claim, with the verdict and the rule that it follows. @param {Found} found */
function claimList(found) {
  return el("section", { class: "card spaced", "aria-label": "The paper and this run" },
    el("h2", { text: `The paper and this run${found.run ? `: ${found.run}` : ""}` }),
    el("ul", { class: "claims" }, ...found.claims.map((claim) =>
      el("li", {},
        el("p", { class: "verdict", data: { verdict: claim.verdict }, text: claim.verdict || "–" }),
        el("div", {},
          el("p", {}, el("b", { text: claim.what }), claim.paper ? el("span", { class: "hint", text: ` The paper: ${claim.paper}.` }) : null),
          el("p", {}, ...pieces(claim.here)),
          claim.rule ? hint(`It agrees if ${claim.rule}.`) : null)))));
}

/** @typedef {{name: string, hash: string}} Pin */

/** @returns {Pin[]} */
function pinsKept() {
  try {
    const found = JSON.parse(localStorage.getItem(PINS) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => typeof one?.name === "string" && typeof one?.hash === "string") : [];
  } catch {
    return []; // a page without storage has no pins
  }
}

/** @param {Pin[]} pins */
function keepPins(pins) {
  try {
    localStorage.setItem(PINS, JSON.stringify(pins.slice(-MOST_PINS)));
  } catch {
    // a page without storage has no pins
  }
  dispatchEvent(new Event("pinschange"));
}

/** A button that pins the view that is looked at under a name. */
export function pinButton() {
  const name = el("input", { id: "pin-name", size: "14", placeholder: "Name this view", "aria-label": "Name this view" });
  const form = el("form", { class: "pin-form" }, name, el("button", { type: "submit", class: "plain", text: "Pin" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const state = stateNow();
    const told = name.value.trim() || [state.view, state.head, state.text.slice(0, 30)].filter(Boolean).join(" · ");
    keepPins([...pinsKept().filter((pin) => pin.name !== told), { name: told, hash: formatState(state) }]);
    name.value = "";
  });
  return form;
}

function pinList() {
  const list = el("ul", { class: "pins" });
  const element = el("section", { class: "card spaced", "aria-label": "Pinned views" }, el("h2", { text: "Pinned views" }), list);
  addEventListener("pinschange", show);

  function show() {
    const pins = pinsKept();
    element.hidden = !pins.length;
    fill(list, ...pins.map((pin) => el("li", {}, button(pin.name, () => go(parseState(pin.hash))),
      button("Unpin", () => keepPins(pinsKept().filter((one) => one.name !== pin.name)), { class: "plain", "aria-label": `Unpin ${pin.name}` }))));
  }

  return { element, show };
}
