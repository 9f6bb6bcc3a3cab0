// Run: what was run, on what, with which choices; every table as CSV, and the Python that makes each view.

import { el, fill } from "./dom.js";
import { figurePlace } from "./figures.js";
import { pythonOf } from "./python.js";
import { copied, saveText } from "./saving.js";
import { ask } from "./source.js";
import { go } from "./state.js";
import { csvOf, tableOf } from "./table.js";

const SHOWN_ROWS = 12;
const COVERAGE = "What suffices, with one part more in each row: total variation of rows rebuilt from the parts so far, and the share of rows and heads within 0.1.";

/**
 * @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status
 * @param {import("./source.js").Start} start
 */
export function runView(status, start) {
  const python = el("div", {});
  const listed = el("div", {});
  let opened = "";
  /** @type {ReturnType<typeof runCard>[]} */
  let cards = [];
  const element = el("div", { class: "run-view" }, listed,
    start.model ? el("section", { class: "card spaced", "aria-label": "Python" }, el("h2", { text: "The Python that makes each view" }), python) : null);

  async function look(/** @type {import("./state.js").State} */ state) {
    try {
      const { runs } = /** @type {{runs: import("./source.js").RunFacts[]}} */ (await ask("runs", {}));
      const naming = runs.filter((run) => run.what === "features" || run.what.startsWith("shelf")).map((run) => run.folder);
      fill(python, ...pythonOf(state, start.loads_as ?? "", naming).flatMap(({ title, code }) => [el("h3", { text: title }), copied(code)]));
      const atlas = { name: "", folder: "", what: `atlas: ${start.atlas}`, model: start.model ?? "", choices: [], figures: [], tables: [{ name: "atlas", caption: "" }, { name: "coverage", caption: COVERAGE }] };
      const all = JSON.stringify([start.atlas ? [atlas] : [], runs]);
      if (all !== listed.dataset.all) {
        listed.dataset.all = all;
        opened = "";
        cards = [...runs, ...(start.atlas ? [atlas] : [])].map((run) => runCard(run));
        fill(listed, ...cards.map((card) => card.element));
      }
      status.done();
      await showWanted(state);
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  /** The table or figure that the address names, opened and in sight; the rows of its head come first. */
  async function showWanted(/** @type {import("./state.js").State} */ state) {
    const wanted = JSON.stringify([state.run, state.table, state.figure, state.head]);
    if (opened === wanted) return;
    opened = wanted;
    const card = cards.find((one) => one.name === (state.run ?? ""));
    if (card && state.table) await card.table(state.table, state.head);
    else if (card && state.figure) await card.figure(state.figure);
    else if (card && state.run) card.element.scrollIntoView({ block: "start" });
  }

  function runCard(/** @type {import("./source.js").RunFacts} */ run) {
    const choices = el("details", {}, el("summary", { text: `Choices, versions and where it comes from (${run.choices.length})` }),
      tableOf(["what", "value"], run.choices, { words: ["value"] }));
    const tables = new Map(run.tables.map((table) => [table.name, tablePart(run.name, table)]));
    const drawn = figurePlace();
    const chosen = run.figures.map((figure) => el("button", { type: "button", class: "link", text: figure, data: { figure },
      on: { click: () => go({ run: run.name, figure, table: null }) } }));
    const figures = el("div", {}, el("h3", { text: "Figures" }), el("p", {}, ...chosen), drawn.element);
    const element = el("section", { class: "card spaced", "aria-label": run.name || "atlas" },
      el("h2", { text: run.name || "The model's atlas" }),
      el("p", { text: run.model === "-" ? `${run.what}.` : `${run.what}, of ${run.model}.` }),
      run.choices.length ? choices : null,
      ...(run.figures.length ? [figures] : []),
      run.tables.length ? el("h3", { text: "Tables" }) : null,
      ...[...tables.values()].map((table) => table.element));

    async function figure(/** @type {string} */ name) {
      for (const one of chosen) one.setAttribute("aria-pressed", String(one.dataset.figure === name));
      await drawn.show(run.name, name);
      figures.scrollIntoView({ block: "start" });
    }

    return { name: run.name, element, figure, table: async (/** @type {string} */ name, /** @type {string|null} */ head) => tables.get(name)?.show(head) };
  }

  function tablePart(/** @type {string} */ run, /** @type {{name: string, caption: string}} */ { name, caption }) {
    const place = el("div", {});
    const get = () => /** @type {Promise<import("./source.js").TableFacts>} */ (ask("table", { run, table: name }));
    const act = (/** @type {string} */ text, /** @type {(found: import("./source.js").TableFacts) => void} */ then) =>
      el("button", { type: "button", class: "link", text, "aria-label": `${text}: ${name}`,
        on: { click: () => get().then(then, (error) => status.fail(error.message)) } });
    const draw = (/** @type {import("./source.js").TableFacts} */ found, /** @type {string|null} */ head = null) =>
      fill(place, ...firstRows(found, caption, head));
    const element = el("div", {}, el("p", {}, el("b", { text: `${name} ` }),
      act("Show", (found) => draw(found)),
      act("Save as CSV", (found) => saveText(`${run || "atlas"}-${name}.csv`, "text/csv", csvOf(found.names, found.rows)))), place);

    async function show(/** @type {string|null} */ head) {
      draw(await get(), head);
      element.scrollIntoView({ block: "start" });
    }

    return { element, show };
  }

  return { element, look };
}

/**
 * @param {import("./source.js").TableFacts} found
 * @param {string} caption
 * @param {string|null} head whose rows come first
 */
function firstRows(found, caption, head) {
  const cell = (/** @type {string|number|boolean|null} */ value) =>
    value === null ? "–" : typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
  const of = (/** @type {boolean} */ its) => found.rows.filter((row) => (head !== null && row.includes(head)) === its);
  return [
    tableOf(found.names, [...of(true), ...of(false)].slice(0, SHOWN_ROWS).map((row) => row.map(cell)), { marked: head }),
    el("p", { class: "hint", text: `${Math.min(SHOWN_ROWS, found.n)} of ${found.n} rows.${caption ? ` ${caption}` : ""}` }),
  ];
}
