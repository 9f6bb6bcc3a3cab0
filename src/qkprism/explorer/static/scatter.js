// Heads as points in a plane with named axes: by two scores.

import { el, fill, svg } from "./dom.js";
import { roving, setStop } from "./keys.js";

const WIDTH = 620;
const HEIGHT = 420;
const LEFT = 58;
const BOTTOM = 44;
const ROOM = 12;

/** @typedef {{name: string, told: string, x: number, y: number, color: string, chosen: boolean}} Point */

/** @param {string} label @param {(name: string) => void} choose */
export function scatterPlot(label, choose) {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "scatter", role: "group", "aria-label": label });
  const said = el("p", { class: "hint pointed-at", text: "\u00a0" });
  const element = el("div", {}, picture, said);
  roving(picture);
  const pointOf = (/** @type {Event} */ event) => /** @type {SVGElement|null} */ (/** @type {Element} */ (event.target).closest("[data-name]"));
  const chooseAt = (/** @type {Event} */ event) => choose(pointOf(event)?.dataset.name ?? "");
  picture.addEventListener("click", (event) => pointOf(event) && chooseAt(event));
  picture.addEventListener("keydown", (event) => {
    if (!pointOf(event) || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    chooseAt(event);
  });
  for (const event of ["pointerover", "focusin"]) {
    picture.addEventListener(event, (e) => fill(said, pointOf(e)?.getAttribute("aria-label") ?? "\u00a0"));
  }

  function show(/** @type {Point[]} */ points, /** @type {string} */ across, /** @type {string} */ up) {
    const [x, y] = [scaleOf(points.map((p) => p.x), LEFT, WIDTH - ROOM), scaleOf(points.map((p) => p.y), HEIGHT - BOTTOM, ROOM)];
    const dots = [...points].sort((a, b) => Number(a.chosen) - Number(b.chosen)).map((point) => svg("circle", {
      class: point.chosen ? "point chosen" : "point", fill: point.color, role: "button", tabindex: "-1", data: { name: point.name, rove: "" },
      "aria-label": point.told, cx: x.at(point.x), cy: y.at(point.y), r: point.chosen ? 7 : 4.5,
    }));
    fill(picture, ...grid(x, y), axisName(across, (LEFT + WIDTH) / 2, HEIGHT - 6, 0), axisName(up, 12, (HEIGHT - BOTTOM) / 2, -90), ...dots);
    setStop(dots, 0);
  }

  return { element, picture, show };
}

/** Where numbers stand on an axis, and round numbers to write at it. @param {number[]} values @param {number} from @param {number} to */
function scaleOf(values, from, to) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (!values.length || low === high) [low, high] = [(low || 0) - 0.5, (high || 0) + 0.5];
  const room = 0.04 * (high - low);
  [low, high] = [low - room, high + room];
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return { at: (/** @type {number} */ value) => from + ((to - from) * (value - low)) / (high - low), ticks, digits: Math.max(0, -Math.floor(Math.log10(step))) };
}

/** @param {ReturnType<typeof scaleOf>} x @param {ReturnType<typeof scaleOf>} y */
function grid(x, y) {
  return [
    ...x.ticks.flatMap((tick) => [
      svg("line", { x1: x.at(tick), x2: x.at(tick), y1: ROOM, y2: HEIGHT - BOTTOM, class: "gridline" }),
      svg("text", { x: x.at(tick), y: HEIGHT - BOTTOM + 15, class: "tick-text", "text-anchor": "middle", text: tick.toFixed(x.digits) }),
    ]),
    ...y.ticks.flatMap((tick) => [
      svg("line", { x1: LEFT, x2: WIDTH - ROOM, y1: y.at(tick), y2: y.at(tick), class: "gridline" }),
      svg("text", { x: LEFT - 5, y: y.at(tick) + 4, class: "tick-text", "text-anchor": "end", text: tick.toFixed(y.digits) }),
    ]),
  ];
}

/** @type {(text: string, x: number, y: number, turned: number) => SVGElement} */
function axisName(text, x, y, turned) {
  return svg("text", { x, y, class: "axis-name", "text-anchor": "middle", transform: turned ? `rotate(${turned} ${x} ${y})` : null, text });
}
