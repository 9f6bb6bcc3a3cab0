// Run: what was run, on what, with which choices; every table as CSV, and the Python that makes each view.

/** @import { RunFacts, Start, TableFacts } from "./source.js" */
/** @import { State } from "./state.js" */
import { button, el, fill, hint, tableOf } from "./dom.js";
import { figurePlace } from "./figures.js";
import { copied, csvOf, saveText } from "./saving.js";
import { ask } from "./source.js";
import { go } from "./state.js";
import { status } from "./status.js";

const SHOWN_ROWS = 12;
const COVERAGE = "What suffices, with one part more in each row: total variation of rows rebuilt from the parts so far, and the share of rows and heads within 0.1.";

/** @param {Start} start */
export function runView(start) {
  const python = el("div", {});
  const listed = el("div", {});
  let opened = "";
  /** @type {ReturnType<typeof runCard>[]} */
  let cards = [];
  const element = el("div", { class: "run-view" }, listed,
    start.model ? el("section", { class: "card spaced", "aria-label": "Python" }, el("h2", { text: "The Python that makes each view" }), python) : null);
  /** @type {RunFacts[]} */
  const atlas = start.atlas ? [{ name: "", folder: "", what: `atlas: ${start.atlas}`, model: start.model ?? "", choices: [], figures: [],
    tables: [{ name: "atlas", caption: "" }, { name: "coverage", caption: COVERAGE }] }] : [];

  async function look(/** @type {State} */ state) {
    const { runs } = await ask("runs", {});
    const naming = runs.filter((run) => run.what === "features" || run.what.startsWith("shelf")).map((run) => run.folder);
    fill(python, ...pythonOf(state, start.loads_as ?? "", naming).flatMap(({ title, code }) => [el("h3", { text: title }), copied(code)]));
    const all = JSON.stringify(runs);
    if (all !== listed.dataset.all) {
      listed.dataset.all = all;
      opened = "";
      cards = [...runs, ...atlas].map(runCard);
      fill(listed, ...cards.map((card) => card.element));
    }
    await showWanted(state);
  }

  /** The table or figure that the address names, opened and in sight; the rows of its head come first. */
  async function showWanted(/** @type {State} */ state) {
    const wanted = JSON.stringify([state.run, state.table, state.figure, state.head]);
    if (opened === wanted) return;
    opened = wanted;
    const card = cards.find((one) => one.name === (state.run ?? ""));
    if (card && state.table) await card.table(state.table, state.head);
    else if (card && state.figure) await card.figure(state.figure);
    else if (card && state.run) card.element.scrollIntoView({ block: "start" });
  }

  return { element, wait: "Reading the runs …", look };
}

/** @param {RunFacts} run */
function runCard(run) {
  const choices = el("details", {}, el("summary", { text: `Choices, versions and where it comes from (${run.choices.length})` }),
    tableOf(["what", "value"], run.choices, { words: ["value"] }));
  const tables = new Map(run.tables.map(({ name, caption }) => [name, tablePart(run.name, name, caption)]));
  const drawn = figurePlace();
  const chosen = run.figures.map((figure) => button(figure, () => go({ run: run.name, figure, table: null }), { data: { figure } }));
  const figures = el("div", {}, el("h3", { text: "Figures" }), el("p", {}, ...chosen), drawn.element);
  const element = el("section", { class: "card spaced", "aria-label": run.name || "atlas" },
    el("h2", { text: run.name || "The model's atlas" }),
    el("p", { text: run.model === "-" ? `${run.what}.` : `${run.what}, of ${run.model}.` }),
    run.choices.length ? choices : null,
    run.figures.length ? figures : null,
    run.tables.length ? el("h3", { text: "Tables" }) : null,
    ...[...tables.values()].map((table) => table.element));

  async function figure(/** @type {string} */ name) {
    for (const one of chosen) one.setAttribute("aria-pressed", String(one.dataset.figure === name));
    await drawn.show(run.name, name);
    figures.scrollIntoView({ block: "start" });
  }

  /** @type {(name: string, head: string|null) => Promise<void>|undefined} */
  const table = (name, head) => tables.get(name)?.show(head);
  return { name: run.name, element, figure, table };
}

/** @type {(run: string, name: string, caption: string) => {element: HTMLElement, show: (head: string|null) => Promise<void>}} */
function tablePart(run, name, caption) {
  const place = el("div", {});
  const get = () => ask("table", { run, table: name });
  const draw = (/** @type {TableFacts} */ found, /** @type {string|null} */ head = null) => fill(place, ...firstRows(found, caption, head));
  const act = (/** @type {string} */ text, /** @type {(found: TableFacts) => void} */ then) =>
    button(text, () => get().then(then, status.fail), { "aria-label": `${text}: ${name}` });
  const element = el("div", {}, el("p", {}, el("b", { text: `${name} ` }),
    act("Show", (found) => draw(found)),
    act("Save as CSV", (found) => saveText(`${run || "atlas"}-${name}.csv`, "text/csv", csvOf(found.names, found.rows)))), place);
  return { element, show: async (head) => {
    draw(await get(), head);
    element.scrollIntoView({ block: "start" });
  } };
}

/** Some rows of a table, those of a head first. @type {(found: TableFacts, caption: string, head: string|null) => HTMLElement[]} */
function firstRows(found, caption, head) {
  const cell = (/** @type {string|number|boolean|null} */ value) =>
    value === null ? "–" : typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
  const [its, others] = [true, false].map((wanted) => found.rows.filter((row) => (head !== null && row.includes(head)) === wanted));
  return [
    tableOf(found.names, [...its, ...others].slice(0, SHOWN_ROWS).map((row) => row.map(cell)), { best: (i) => i < its.length }),
    hint(`${Math.min(SHOWN_ROWS, found.n)} of ${found.n} rows.${caption ? ` ${caption}` : ""}`),
  ];
}

/** The Python that makes each view, for what is looked at now and these folders.
 *  @type {(state: State, model: string, runs: string[]) => {title: string, code: string}[]} */
function pythonOf(state, model, runs) {
  const literal = JSON.stringify; // its quoting is Python's too
  const head = literal(state.head ?? "L0H0");
  const text = literal(state.text || "The hat is in box O, the jam is in box Z. The jam is in box");
  const query = state.query === null ? "" : `, query=${state.query}`;
  const features = runs.length ? `, features=[${runs.map((run) => literal(run)).join(", ")}]` : "";
  const load = `import qkprism as qk\nmodel = qk.load(${literal(model)})`;
  const made = [
    { title: "Why this token", code: `${load}\nwhy = qk.explain(model, ${text}${query}${features}, head=${head})\nprint(why); why.plot()` },
    { title: "Heads", code: `${load}\natlas = qk.survey(model)\natlas.to_frame(); atlas.plot()` },
    { title: "Try a contrast", code: `${load}\ntask = qk.task("boxes", tokenizer=model.tokenizer)\nheads = qk.find_heads(model, task.search)\n` +
      "features = qk.decompose(model, task.contrasts, heads=heads.top(4))\nfeatures.save(\"runs/mine\")" },
  ];
  if (!runs.length) return made;
  const kind = state.kind === "ablate" ? `, edit=qk.Edit("ablate")` : "";
  return [...made, { title: "What if, over many texts", code: `${load}\nfeatures = qk.Features.load(${literal(runs[0])})\n` +
    `task = qk.task("boxes", tokenizer=model.tokenizer)\neffects = qk.intervene(model, task.test, features${kind}, outcome="logits")\neffects.to_frame(); effects.plot()` }];
}
