// Keys and queries as a cloud: turned in three dimensions, coloured by any label, chosen by a line drawn around them.

/** @import { Cloud } from "./source.js" */
import { chosenTable, contextOf } from "./chosen.js";
import { el, fill, select } from "./dom.js";
import { visible } from "./letters.js";
import { MOST_LOOKS, SIZE, cubeOf, markSample, nearest, nextTowards, project, stampOf, within } from "./points.js";

const HIGH = 0.66; // of its width
const NEAR = 12; // pixels at which a point is pointed at
const TURN = 0.012; // radians a pixel
const NAMED = 24; // values in the legend
const ARROWS = new Map([["ArrowLeft", [-1, 0]], ["ArrowRight", [1, 0]], ["ArrowUp", [0, -1]], ["ArrowDown", [0, 1]]]);
const HELP = "Arrows go from point to point, Space chooses one, Shift and arrows turn, Escape lets go. Drag to turn or to draw a line around points.";
let clouds = 0;

/** The cloud of what has a name. @type {(cloud: Cloud, name: string) => HTMLElement} */
export function cloudView(cloud, name) {
  const id = `cloud-${++clouds}`;
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": `Keys and queries in ${name}`, "aria-describedby": `${id}-help` });
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const choice = (/** @type {string} */ told, /** @type {string[]} */ names) => select(told, names.map((text, value) => [value, text]));
  const by = choice("Colour by", [...cloud.labels.map((label) => label.name), "positive or negative", "key or query"]);
  by.value = String(Math.max(0, cloud.labels.findIndex((label) => label.name === name)));
  const way = choice("Seen by", cloud.views.map((view) => view.name));
  const deep = choice("Dimensions", ["2D", "3D"]);
  const drag = choice("Dragging", ["turns it", "draws a line around points"]);
  const legend = el("ul", { class: "legend", "aria-label": "Values; press one to choose its points" });
  const said = el("div", { class: "hint pointed-at", "aria-live": "polite" });
  const list = el("div", {});
  const element = el("div", { class: "cloud" },
    el("div", { class: "controls" }, el("span", { text: "Colour by" }), by, el("span", { text: "seen by" }), way, deep, drag),
    legend, canvas, said, el("p", { class: "hint", id: `${id}-help`, text: HELP }), list);

  const n = cloud.example.length;
  const total = n + cloud.views[0].queries.length;
  const isQuery = (/** @type {number} */ i) => i >= n;
  let cube = cubeOf([]);
  let screen = cubeOf([]);
  let flat = true;
  let looks = /** @type {number[]} */ ([]);
  let [stamps, hollow] = /** @type {HTMLCanvasElement[][]} */ ([[], []]);
  const chosen = new Set();
  let [yaw, pitch, pointed, asked] = [0.6, 0.35, -1, 0];
  let line = /** @type {[number, number][]} */ ([]);
  let held = /** @type {{x: number, y: number}|null} */ (null);
  let [width, height, scale] = [600, 400, 1];

  function valuesBy() {
    const place = Number(by.value) - cloud.labels.length;
    if (place === 1) return Array.from({ length: total }, (_, i) => (isQuery(i) ? "query" : "key"));
    if (place === 0) return Array.from({ length: total }, (_, i) => (isQuery(i) ? "query" : cloud.positive[i] ? "positive key" : "negative key"));
    const { keys, queries } = cloud.labels[Number(by.value)];
    return [...keys, ...queries].map((value) => value ?? "none");
  }

  function recolor() {
    const values = valuesBy();
    const kinds = [...new Set(values)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    looks = values.map((value) => Math.min(kinds.indexOf(value), MOST_LOOKS));
    const button = (/** @type {string} */ kind, /** @type {number} */ look) => {
      const made = el("button", { type: "button", "aria-pressed": "false", title: "Choose its points" }, markSample(look), visible(kind));
      made.addEventListener("click", () => {
        const on = made.getAttribute("aria-pressed") !== "true";
        made.setAttribute("aria-pressed", String(on));
        values.forEach((value, i) => value === kind && (on ? chosen.add(i) : chosen.delete(i)));
        changed();
      });
      return el("li", {}, made);
    };
    fill(legend, ...kinds.slice(0, NAMED).map(button), kinds.length > NAMED ? el("li", { text: `and ${kinds.length - NAMED} more` }) : null,
      el("li", {}, markSample(MOST_LOOKS, true), "hollow: query"));
    restamp();
  }

  /** Marks as they are on this screen, in this theme. */
  function restamp() {
    const paper = getComputedStyle(canvas).backgroundColor;
    const kinds = Array.from({ length: Math.min(MOST_LOOKS, Math.max(...looks, 0)) + 1 }, (_, look) => look);
    [stamps, hollow] = [false, true].map((empty) => kinds.map((look) => stampOf(look, empty, scale, paper)));
    soon();
  }

  function place() {
    const view = cloud.views[Number(way.value)];
    const rows = [...view.keys, ...view.queries];
    const most = view.axes.length;
    deep.disabled = most < 3;
    flat = most < 3 || deep.value === "0";
    drag.disabled = flat;
    canvas.classList.toggle("turns", !flat && drag.value === "0");
    cube = cubeOf(rows);
    screen = cubeOf(rows);
    soon();
  }

  function resize() {
    width = Math.max(200, canvas.clientWidth);
    height = Math.round(HIGH * width);
    scale = Math.max(1, Math.ceil(devicePixelRatio));
    [canvas.width, canvas.height] = [width * scale, height * scale];
    restamp();
  }

  /** Draw before the next frame, once. */
  function soon() {
    if (!asked) asked = requestAnimationFrame(draw);
  }

  function draw() {
    asked = 0;
    project(cube, { yaw, pitch, flat, width, height }, screen);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    axes();
    const order = flat ? null : [...Array(total).keys()].sort((a, b) => screen[3 * b + 2] - screen[3 * a + 2]);
    for (let k = 0; k < total; k++) {
      const i = order ? order[k] : k;
      pen.globalAlpha = chosen.size && !chosen.has(i) ? 0.25 : flat ? 0.9 : 0.75 - 0.25 * Math.max(-1, Math.min(1, screen[3 * i + 2]));
      pen.drawImage((isQuery(i) ? hollow : stamps)[looks[i]], screen[3 * i] - SIZE / 2, screen[3 * i + 1] - SIZE / 2, SIZE, SIZE);
    }
    pen.globalAlpha = 1;
    const ink = getComputedStyle(canvas).color;
    if (pointed >= 0) ring(pointed, ink);
    if (line.length > 1) outline(ink);
  }

  function axes() {
    const ink = getComputedStyle(said).color;
    const names = cloud.views[Number(way.value)].axes;
    [pen.strokeStyle, pen.fillStyle, pen.lineWidth, pen.font] = [ink, ink, 1, "12px sans-serif"];
    if (flat) {
      pen.textAlign = "center";
      pen.fillText(names[0], width / 2, height - 7);
      pen.save();
      pen.translate(13, height / 2);
      pen.rotate(-Math.PI / 2);
      pen.fillText(names[1], 0, 0);
      pen.restore();
      return;
    }
    const ends = new Float32Array(12);
    project(new Float32Array([0, 0, 0, 1.15, 0, 0, 0, 1.15, 0, 0, 0, 1.15]), { yaw, pitch, flat, width, height }, ends);
    pen.textAlign = "center";
    for (let axis = 1; axis < 4; axis++) {
      pen.beginPath();
      pen.moveTo(ends[0], ends[1]);
      pen.lineTo(ends[3 * axis], ends[3 * axis + 1]);
      pen.stroke();
      pen.fillText(names[axis - 1] ?? "", ends[3 * axis], ends[3 * axis + 1] - 4);
    }
  }

  function ring(/** @type {number} */ i, /** @type {string} */ ink) {
    [pen.strokeStyle, pen.lineWidth] = [ink, 2];
    pen.beginPath();
    pen.arc(screen[3 * i], screen[3 * i + 1], SIZE / 2 + 3, 0, 2 * Math.PI);
    pen.stroke();
  }

  function outline(/** @type {string} */ ink) {
    [pen.strokeStyle, pen.lineWidth] = [ink, 1.5];
    pen.setLineDash([4, 3]);
    pen.beginPath();
    for (const [x, y] of line) pen.lineTo(x, y);
    pen.closePath();
    pen.stroke();
    pen.setLineDash([]);
  }

  function point(/** @type {number} */ i) {
    if (i === pointed) return;
    pointed = i;
    fill(said, ...(i < 0 ? [] : contextOf(cloud, i)));
    soon();
  }

  function changed() {
    fill(list, ...chosenTable(cloud, [...chosen].sort((a, b) => a - b), name, () => {
      chosen.clear();
      for (const made of legend.querySelectorAll("[aria-pressed]")) made.setAttribute("aria-pressed", "false");
      changed();
    }));
    soon();
  }

  const at = (/** @type {PointerEvent} */ event) => ({ x: event.offsetX, y: event.offsetY });
  canvas.addEventListener("pointerdown", (event) => {
    held = at(event);
    line = [];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { x, y } = at(event);
    if (!held) return point(nearest(screen, x, y, NEAR));
    if (!flat && drag.value === "0") {
      yaw += TURN * (x - held.x);
      pitch = Math.max(-1.5, Math.min(1.5, pitch + TURN * (y - held.y)));
      held = { x, y };
    } else line.push([x, y]);
    soon();
  });
  canvas.addEventListener("pointerup", (event) => {
    const { x, y } = at(event);
    const found = line.length > 4 ? within(screen, line) : [nearest(screen, x, y, NEAR)].filter((i) => i >= 0 && !line.length);
    if (line.length > 4 && !event.shiftKey) chosen.clear();
    for (const i of found) line.length || !chosen.has(i) ? chosen.add(i) : chosen.delete(i);
    [held, line] = [null, []];
    if (found.length) changed();
    soon();
  });
  canvas.addEventListener("pointerleave", () => !held && point(-1));
  canvas.addEventListener("keydown", (event) => {
    const step = ARROWS.get(event.key);
    if (step && event.shiftKey && !flat) {
      yaw += 0.15 * step[0];
      pitch = Math.max(-1.5, Math.min(1.5, pitch + 0.15 * step[1]));
      soon();
    } else if (step) point(pointed < 0 ? 0 : nextTowards(screen, pointed, step[0], step[1]));
    else if (event.key === " " && pointed >= 0) {
      if (!chosen.delete(pointed)) chosen.add(pointed);
      changed();
    } else if (event.key === "Escape") {
      chosen.clear();
      point(-1);
      changed();
    } else return;
    event.preventDefault();
  });
  by.addEventListener("change", recolor);
  for (const one of [way, deep, drag]) one.addEventListener("change", place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restamp);
  new ResizeObserver(() => canvas.clientWidth !== width && canvas.clientWidth && resize()).observe(canvas);
  place();
  recolor();
  requestAnimationFrame(resize);
  return element;
}
