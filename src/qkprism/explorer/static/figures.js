// Figures that only a study has: plotly draws them, and is read when the first of them is looked at.

import { button, el, fill } from "./dom.js";
import { ask, held } from "./source.js";

const ADDRESS = "static/plotly.min.js";
/** @type {Promise<any>|null} */
let reading = null;

/** Plotly, from inside a mailed page or from the server. */
async function read() {
  const inside = await held("plotly");
  const script = el("script", inside ? { text: inside } : { src: ADDRESS });
  const there = new Promise((done, failed) => {
    script.addEventListener("load", done);
    script.addEventListener("error", () => failed(new Error("The figure's script could not be read.")));
  });
  document.head.append(script);
  if (!inside) await there; // a script that is inside has run by now
  return /** @type {any} */ (window).Plotly;
}

/** A place for a figure. It keeps its height while figures change, so that nothing jumps. */
export function figurePlace() {
  const drawn = el("div", { class: "scroll figure-place" });
  const saves = el("p", { class: "saves" });
  const element = el("div", {}, drawn, saves);
  let shown = "";

  async function show(/** @type {string} */ run, /** @type {string} */ figure) {
    const wanted = JSON.stringify([run, figure]);
    if (shown === wanted) return;
    shown = wanted;
    const { figure: body } = await ask("figure", { run, figure });
    if (shown !== wanted) return; // another was asked for meanwhile
    const inner = el("div", { role: "img", "aria-label": body.layout.title?.text?.replace(/<[^>]*>/g, " ") ?? figure,
      style: { height: `${body.layout.height ?? 450}px` } });
    const save = (/** @type {string} */ format) => async () =>
      (await (reading ??= read())).downloadImage(inner, { format, filename: `${run} ${figure}`.replace(/[^\w.-]+/g, "_"), width: inner.clientWidth, height: inner.clientHeight });
    fill(saves, ...["svg", "png"].map((format) => button(`Save as ${format.toUpperCase()}`, save(format))));
    fill(drawn, inner); // as high as it will be, before plotly is read
    const drawing = await (reading ??= read());
    if (shown !== wanted) return;
    await drawing.newPlot(inner, body.data, body.layout, { displaylogo: false, showSendToCloud: false });
  }

  return { element, show };
}
