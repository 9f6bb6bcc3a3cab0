// Run: what was run, on what, with which choices; every table as CSV, and the Python that makes each view.

import { el, fill } from "./dom.js";
import { pythonOf } from "./python.js";
import { copied, saveText } from "./saving.js";
import { ask } from "./source.js";
import { csvOf, tableOf } from "./table.js";

const SHOWN_ROWS = 12;

/**
 * @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status
 * @param {import("./source.js").Start} start
 */
export function runView(status, start) {
  const python = el("div", {});
  const listed = el("div", {});
  const element = el("div", { class: "run-view" },
    el("section", { class: "card", "aria-label": "Python" }, el("h2", { text: "The Python that makes each view" }), python), listed);

  async function look(/** @type {import("./state.js").State} */ state) {
    try {
      const { runs } = /** @type {{runs: import("./source.js").RunFacts[]}} */ (await ask("runs", {}));
      const naming = runs.filter((run) => run.what === "features" || run.what.startsWith("shelf")).map((run) => run.name);
      fill(python, ...pythonOf(state, start.loads_as ?? "", naming).flatMap(({ title, code }) => [el("h3", { text: title }), copied(code)]));
      const atlas = { name: "", what: `atlas: ${start.atlas ?? ""}`, model: start.model ?? "", choices: [], tables: ["atlas"] };
      fill(listed, ...[atlas, ...runs].map((run) => runCard(run)));
      status.done();
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  function runCard(/** @type {import("./source.js").RunFacts} */ run) {
    const choices = el("details", {}, el("summary", { text: `Choices, versions and where it comes from (${run.choices.length})` }),
      tableOf(["what", "value"], run.choices, { words: ["value"] }));
    return el("section", { class: "card spaced", "aria-label": run.name || "atlas" },
      el("h2", { text: run.name || "The model's atlas" }),
      el("p", { text: `${run.what}, of ${run.model}.` }),
      run.choices.length ? choices : null,
      ...run.tables.map((table) => tablePart(run.name, table)));
  }

  function tablePart(/** @type {string} */ run, /** @type {string} */ table) {
    const place = el("div", {});
    const get = () => /** @type {Promise<import("./source.js").TableFacts>} */ (ask("table", { run, table }));
    const act = (/** @type {string} */ text, /** @type {(found: import("./source.js").TableFacts) => void} */ then) =>
      el("button", { type: "button", class: "link", text, "aria-label": `${text}: ${table}`,
        on: { click: () => get().then(then, (error) => status.fail(error.message)) } });
    return el("div", {}, el("p", {}, el("b", { text: `${table} ` }),
      act("Show", (found) => fill(place, ...firstRows(found))),
      act("Save as CSV", (found) => saveText(`${run || "atlas"}-${table}.csv`, "text/csv", csvOf(found.names, found.rows)))), place);
  }

  return { element, look };
}

/** @param {import("./source.js").TableFacts} found */
function firstRows(found) {
  const cell = (/** @type {string|number|boolean|null} */ value) =>
    value === null ? "–" : typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
  return [
    tableOf(found.names, found.rows.slice(0, SHOWN_ROWS).map((row) => row.map(cell))),
    el("p", { class: "hint", text: `${Math.min(SHOWN_ROWS, found.n)} of ${found.n} rows.` }),
  ];
}
