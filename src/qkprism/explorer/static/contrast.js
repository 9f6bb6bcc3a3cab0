// Try a contrast: marked prompts or a template, how they fall on tokens, what the check says, and a run of it.

/** @import { Checked } from "./source.js" */
/** @import { State } from "./state.js" */
/** @import { Mark } from "./tokens.js" */
import { el, fill, hint, option, radios, tableOf } from "./dom.js";
import { counted } from "./letters.js";
import { ask } from "./source.js";
import { go } from "./state.js";
import { workplace } from "./status.js";
import { markedTokens } from "./tokens.js";
import { trialForm } from "./trialform.js";

const SIGNS = [
  ["+", "+ positive key"], ["-", "− negative key"], ["target", "∗ target: the negative key of interventions"],
  ["?", "? query (the last token if none is marked)"], ["none", "no mark"],
];
/** @type {Map<string, Mark>} */
const MARKS = new Map([
  ["+", { sign: "+", kind: "second", told: "positive key" }],
  ["-", { sign: "−", kind: "first", told: "negative key" }],
  ["target", { sign: "∗", kind: "first", told: "negative key, the target" }],
  ["?", { sign: "?", kind: "asks", told: "query" }],
]);
const FIRST = "The hat is in box [-O], the jam is in box [+Z]. The jam is in [?box]";
const KEPT = "qkprism draft";
const CHECKING = "Checking …";

export function contrastView() {
  const kept = remembered();
  const kind = el("select", { id: "draft-kind" });
  const name = el("input", { id: "draft-name", size: "16", spellcheck: "false", value: kept.name });
  const [lines, source] = [["draft-lines", 4], ["draft-source", 16]].map(([id, rows]) => el("textarea", { id, rows, spellcheck: "false", wrap: "off" }));
  lines.value = kept.lines;
  const signs = radios("sign", SIGNS);
  const clicking = el("div", { class: "controls", role: "radiogroup", "aria-label": "A click on a token makes it" },
    el("span", { text: "A click on a token makes it" }), ...signs.map((sign) => sign.element));
  const byHand = el("div", {}, el("label", { for: "draft-lines", text: "Prompts, one a line; a mark is written [+so], [-so], [-*so] or [?so]" }), lines, clicking);
  const question = el("p", { class: "computed" });
  const byTemplate = el("div", {}, question, el("label", { for: "draft-source", text: "The template: edit its words, its draws, its prompt" }), source);
  const examples = el("div", { class: "drafted" });
  const more = hint("");
  const check = el("div", { "aria-live": "polite" });
  const trial = trialForm(draft);
  const element = el("div", { class: "contrast-view" },
    el("section", { class: "card", "aria-label": "The contrast" },
      el("h2", { text: "Try a contrast" }),
      hint("Positive keys are what a head should find from the query, negative keys what it should pass over. The difference between them is the feature."),
      el("div", { class: "controls" }, el("label", { for: "draft-kind", text: "From" }), kind, el("label", { for: "draft-name", text: "Name" }), name),
      byHand, byTemplate),
    el("section", { class: "card spaced", "aria-label": "Tokens" }, el("h2", { text: "How it falls on tokens" }), examples, more),
    el("div", { class: "columns halves" },
      el("section", { class: "card", "aria-label": "Check" }, el("h2", { text: "What the check says" }), check),
      el("section", { class: "card", "aria-label": "Run" }, trial.element)));

  /** @type {{name: string, question: string, source: string}[]|null} */
  let shelf = null;
  let template = "";
  let waiting = 0;
  const checking = workplace();
  kind.addEventListener("change", () => go({ template: kind.value || null }));
  for (const field of [lines, source, name]) {
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => checking(CHECKING, checkNow), 400);
    });
  }

  function draft() {
    return { name: name.value.trim(), lines: template ? [] : lines.value.split("\n"), template: template ? source.value : null };
  }

  async function look(/** @type {State} */ state, /** @type {AbortSignal} */ signal) {
    if (!shelf) {
      shelf = (await ask("shelf", {})).templates;
      fill(kind, option("", "prompts that I mark"),
        el("optgroup", { label: "a template of the shelf" }, ...shelf.map((one) => option(one.name, `${one.name}: ${one.question}`))));
    }
    const found = shelf.find((one) => one.name === state.template);
    if (found && template !== found.name) {
      [source.value, name.value] = [found.source, `my_${found.name}`];
      fill(question, found.question);
    }
    if (!found && template) name.value = kept.name;
    template = found?.name ?? "";
    kind.value = template;
    [byHand.hidden, byTemplate.hidden] = [Boolean(template), !template];
    trial.named(name.value, Boolean(template));
    await checkNow(signal);
  }

  async function checkNow(/** @type {AbortSignal} */ signal) {
    if (!template) remember({ name: name.value, lines: lines.value });
    try {
      const found = await ask("draft", draft(), signal);
      fill(check, ...checked(found));
      trial.named(name.value, Boolean(template));
      drawExamples(found);
    } catch (error) {
      if (!signal.aborted) fill(examples);
      if (!signal.aborted) fill(check, hint("It cannot be read yet."));
      throw error;
    }
  }

  function drawExamples(/** @type {Checked} */ found) {
    const written = lines.value.split("\n").map((line, i) => ({ line, i })).filter(({ line }) => line.trim());
    fill(examples, ...found.examples.map((example, at) => {
      const view = markedTokens(`Prompt ${at + 1}`, (place) => {
        if (!template) checking(CHECKING, (signal) => mark(written[at].i, place, signal));
      });
      view.show(example.tokens, new Map(example.marks.map(([place, sign]) => [place, markOf(sign, example.said)])));
      return view.element;
    }));
    const drawn = template ? `${found.examples.length} of ${found.n} prompts that the template draws for the check.` : `${counted(found.n, "prompt")}.`;
    fill(more, found.n ? drawn : "");
  }

  async function mark(/** @type {number} */ at, /** @type {number} */ place, /** @type {AbortSignal} */ signal) {
    const every = lines.value.split("\n");
    const sign = signs.find(({ radio }) => radio.checked)?.value ?? "+";
    every[at] = (await ask("mark", { line: every[at], place, sign })).line;
    lines.value = every.join("\n");
    await checkNow(signal);
  }

  return { element, wait: CHECKING, look };
}

/** The mark of a sign; `said`: whether the query is marked by hand. @type {(sign: string, said: boolean) => Mark} */
function markOf(sign, said) {
  const mark = /** @type {Mark} */ (MARKS.get(sign));
  return sign === "?" && !said ? { ...mark, told: "query: the last token, as none is marked" } : mark;
}

/** What the check says: mistakes, notes, and whether something simple tells the sides apart. @param {Checked} found */
function checked(found) {
  const list = (/** @type {string[]} */ lines, kind = "listed") =>
    lines.length ? el("ul", { class: kind }, ...lines.map((text) => el("li", { text }))) : null;
  return [
    el("p", { text: found.mistakes.length ? `${counted(found.mistakes.length, "mistake")} to mend first.` :
      `${counted(found.n, "prompt")}, and nothing that keeps this from being run.` }),
    list(found.mistakes.map((one) => `line ${one.line}: ${one.message}`), "problem listed"),
    list(found.notes),
    ...(found.balance.length ? balance(found) : [hint("The balance check needs two prompts with keys of both sides, and many to say much.")]),
  ];
}

/** @param {Checked} found */
function balance(found) {
  return [
    el("h3", { text: "Could a head do it by something simpler?" }),
    tableOf(["of a key", "AUC", "± error", "verdict"], found.balance.map((row) => [
      row.predictor, (row.auc ?? 0).toFixed(2), (row.error ?? 0).toFixed(2),
      !row.tells ? "does not tell" : found.declared.includes(row.predictor) ? "tells, as declared" : "tells the sides apart",
    ]), { best: (i) => found.balance[i].tells }),
    hint("How often this alone ranks a positive key above a negative one: 0.5 is a coin toss, 1 gives the answer away."),
  ];
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
