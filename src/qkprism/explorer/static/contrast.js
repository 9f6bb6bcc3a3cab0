// Try a contrast: marked prompts or a template, how they fall on tokens, what the check says, and a run of it.

import { checkPanel } from "./checkpanel.js";
import { el, fill } from "./dom.js";
import { counted } from "./letters.js";
import { markedTokens } from "./marked.js";
import { ask } from "./source.js";
import { go } from "./state.js";
import { trialForm } from "./trialform.js";

const SIGNS = [
  ["+", "+ positive key"], ["-", "− negative key"], ["target", "∗ target: the negative key of interventions"],
  ["?", "? query (the last token if none is marked)"], ["none", "no mark"],
];
const MARKS = new Map([
  ["+", { sign: "+", kind: "second", told: "positive key" }],
  ["-", { sign: "−", kind: "first", told: "negative key" }],
  ["target", { sign: "∗", kind: "first", told: "negative key, the target" }],
  ["?", { sign: "?", kind: "asks", told: "query" }],
]);
const FIRST = "The hat is in box [-O], the jam is in box [+Z]. The jam is in [?box]";
const KEPT = "qkprism draft";

/** @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status */
export function contrastView(status) {
  const kept = remembered();
  const kind = /** @type {HTMLSelectElement} */ (el("select", { id: "draft-kind" }));
  const name = /** @type {HTMLInputElement} */ (el("input", { id: "draft-name", size: "16", spellcheck: "false", value: kept.name }));
  const lines = area("draft-lines", kept.lines, 4);
  const source = area("draft-source", "", 16);
  const signs = SIGNS.map(([value, text], i) => {
    const radio = /** @type {HTMLInputElement} */ (el("input", { type: "radio", name: "sign", value, id: `sign-${i}` }));
    radio.checked = i === 0;
    return { radio, element: el("label", { class: "choice", for: `sign-${i}` }, radio, ` ${text}`) };
  });
  const clicking = el("div", { class: "controls", role: "radiogroup", "aria-label": "A click on a token makes it" },
    el("span", { text: "A click on a token makes it" }), ...signs.map((sign) => sign.element));
  const byHand = el("div", {}, el("label", { for: "draft-lines", text: "Prompts, one a line; a mark is written [+so], [-so], [-*so] or [?so]" }), lines, clicking);
  const question = el("p", { class: "computed" });
  const byTemplate = el("div", {}, question, el("label", { for: "draft-source", text: "The template: edit its words, its draws, its prompt" }), source);
  const examples = el("div", { class: "drafted" });
  const more = el("p", { class: "hint" });
  const check = checkPanel();
  const trial = trialForm(status, draft);
  const element = el("div", { class: "contrast-view" },
    el("section", { class: "card", "aria-label": "The contrast" },
      el("h2", { text: "Try a contrast" }),
      el("p", { class: "hint", text: "Positive keys are what a head should find from the query, negative keys what it should pass over. " +
        "The difference between them is the feature." }),
      el("div", { class: "controls" }, el("label", { for: "draft-kind", text: "From" }), kind, el("label", { for: "draft-name", text: "Name" }), name),
      byHand, byTemplate),
    el("section", { class: "card spaced", "aria-label": "Tokens" }, el("h2", { text: "How it falls on tokens" }), examples, more),
    el("div", { class: "columns halves" },
      el("section", { class: "card", "aria-label": "Check" }, check.element),
      el("section", { class: "card", "aria-label": "Run" }, trial.element)));

  /** @type {{name: string, question: string, source: string}[]|null} */
  let shelf = null;
  let template = "";
  let waiting = 0;
  let asking = new AbortController();
  kind.addEventListener("change", () => go({ template: kind.value || null }));
  for (const field of [lines, source, name]) {
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(checkNow, 400);
    });
  }

  function draft() {
    return { name: name.value.trim(), lines: template ? [] : lines.value.split("\n"), template: template ? source.value : null };
  }

  async function look(/** @type {import("./state.js").State} */ state) {
    try {
      if (!shelf) {
        shelf = (await ask("shelf", {})).templates;
        fill(kind, el("option", { value: "", text: "prompts that I mark" }),
          el("optgroup", { label: "a template of the shelf" },
            ...(shelf ?? []).map((one) => el("option", { value: one.name, text: `${one.name}: ${one.question}` }))));
      }
      const found = shelf?.find((one) => one.name === state.template);
      if (found && template !== found.name) {
        [source.value, name.value] = [found.source, `my_${found.name}`];
        fill(question, found.question);
      }
      if (!found && template) name.value = kept.name;
      template = found?.name ?? "";
      kind.value = template;
      [byHand.hidden, byTemplate.hidden] = [Boolean(template), !template];
      trial.named(name.value, Boolean(template));
      await checkNow();
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  async function checkNow() {
    asking.abort();
    const { signal } = (asking = new AbortController());
    if (!template) remember({ name: name.value, lines: lines.value });
    const slow = setTimeout(() => status.busy("Checking …"), 200);
    try {
      const found = /** @type {import("./source.js").Checked} */ (await ask("draft", draft(), signal));
      check.show(found);
      trial.named(name.value, Boolean(template));
      drawExamples(found);
      status.done();
    } catch (error) {
      if (signal.aborted) return;
      fill(examples);
      check.show(null);
      status.fail(/** @type {Error} */ (error).message);
    } finally {
      clearTimeout(slow);
    }
  }

  function drawExamples(/** @type {import("./source.js").Checked} */ found) {
    const written = lines.value.split("\n").map((line, i) => ({ line, i })).filter(({ line }) => line.trim());
    fill(examples, ...found.examples.map((example, at) => {
      const view = markedTokens(`Prompt ${at + 1}`, (place) => {
        if (!template) mark(written[at].i, place);
      });
      view.show(example.tokens, new Map(example.marks.map(([place, sign]) => [place, markOf(sign, example.said)])));
      return view.element;
    }));
    const drawn = template ? `${found.examples.length} of ${found.n} prompts that the template draws for the check.` : `${counted(found.n, "prompt")}.`;
    fill(more, found.n ? drawn : "");
  }

  async function mark(/** @type {number} */ at, /** @type {number} */ place) {
    const every = lines.value.split("\n");
    const sign = signs.find(({ radio }) => radio.checked)?.radio.value ?? "+";
    try {
      every[at] = (await ask("mark", { line: every[at], place, sign })).line;
      lines.value = every.join("\n");
      await checkNow();
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  return { element, look };
}

/**
 * @param {string} sign
 * @param {boolean} said whether the query is marked by hand
 */
function markOf(sign, said) {
  const mark = /** @type {import("./marked.js").Mark} */ (MARKS.get(sign));
  return sign === "?" && !said ? { ...mark, told: "query: the last token, as none is marked" } : mark;
}

/**
 * @param {string} id
 * @param {string} text
 * @param {number} rows
 */
function area(id, text, rows) {
  const made = /** @type {HTMLTextAreaElement} */ (el("textarea", { id, rows, spellcheck: "false", wrap: "off" }));
  made.value = text;
  return made;
}

function remembered() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    if (typeof found?.name === "string" && typeof found.lines === "string") return found;
  } catch {
    // a page without storage begins anew
  }
  return { name: "mine", lines: FIRST };
}

/** @param {{name: string, lines: string}} draft */
function remember(draft) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(draft));
  } catch {
    // a page without storage begins anew
  }
}
