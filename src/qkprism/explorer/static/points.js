// Points in two or three dimensions on a canvas: where each stands on the screen, which of them a lasso holds, and their
// marks: ten colours by three shapes, drawn once and stamped many times; a query is hollow.

import { svg } from "./dom.js";

/** @typedef {{yaw: number, pitch: number, flat: boolean, width: number, height: number}} Camera */

const MARGIN = 26;

/** A cloud that fills a cube from -1 to 1, whatever its units: three numbers a point. @type {(rows: (number|null)[][]) => Float32Array} */
export function cubeOf(rows) {
  const found = new Float32Array(3 * rows.length);
  for (let axis = 0; axis < 3; axis++) {
    const values = rows.map((row) => row[axis] ?? 0);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [middle, half] = [(low + high) / 2, (high - low) / 2 || 1];
    values.forEach((value, i) => {
      found[3 * i + axis] = (value - middle) / half;
    });
  }
  return found;
}

/**
 * Where the points stand on the screen, in pixels, and how near each is (three numbers a point).
 * @type {(cube: Float32Array, camera: Camera, onto: Float32Array) => void}
 */
export function project(cube, camera, onto) {
  const { yaw, pitch, flat, width, height } = camera;
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  const size = Math.min(width, height) / 2 - MARGIN;
  const reach = flat ? [width / 2 - MARGIN, height / 2 - MARGIN] : [0.66 * size * (width / height > 1.2 ? 1.25 : 1), 0.66 * size];
  for (let i = 0; i < cube.length; i += 3) {
    const [x, y, z] = [cube[i], cube[i + 1], cube[i + 2]];
    const across = flat ? x : cy * x + sy * z;
    const away = flat ? 0 : cy * z - sy * x;
    const up = flat ? y : cp * y - sp * away;
    onto[i] = width / 2 + reach[0] * across;
    onto[i + 1] = height / 2 - reach[1] * up;
    onto[i + 2] = flat ? 0 : sp * y + cp * away;
  }
}

/**
 * The point nearest to a place of the screen, within a reach; -1 if there is none.
 * @type {(screen: Float32Array, x: number, y: number, reach: number) => number}
 */
export function nearest(screen, x, y, reach) {
  let best = -1;
  let least = reach * reach;
  for (let i = 0; i < screen.length; i += 3) {
    const away = (screen[i] - x) ** 2 + (screen[i + 1] - y) ** 2;
    if (away < least) [best, least] = [i / 3, away];
  }
  return best;
}

/**
 * The nearest point in a direction from another: for the arrow keys.
 * @type {(screen: Float32Array, from: number, dx: number, dy: number) => number}
 */
export function nextTowards(screen, from, dx, dy) {
  let best = from;
  let least = Infinity;
  for (let i = 0; i < screen.length; i += 3) {
    const [x, y] = [screen[i] - screen[3 * from], screen[i + 1] - screen[3 * from + 1]];
    const along = x * dx + y * dy;
    const beside = Math.abs(x * dy) + Math.abs(y * dx);
    if (along > 0.5 && along + 3 * beside < least) [best, least] = [i / 3, along + 3 * beside];
  }
  return best;
}

/** The points inside a line that was drawn around them. @type {(screen: Float32Array, line: [number, number][]) => number[]} */
export function within(screen, line) {
  const found = [];
  for (let i = 0; i < screen.length; i += 3) {
    let inside = false;
    for (let a = 0, b = line.length - 1; a < line.length; b = a++) {
      const [[ax, ay], [bx, by]] = [line[a], line[b]];
      const crosses = ay > screen[i + 1] !== by > screen[i + 1];
      if (crosses && screen[i] < ((bx - ax) * (screen[i + 1] - ay)) / (by - ay) + ax) inside = !inside;
    }
    if (inside) found.push(i / 3);
  }
  return found;
}

// as in the figures: told apart under every common colour blindness, and by lightness in print
const MARK_COLORS = [
  "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#332288", "#882255", "#999933", "#117733",
];
export const SIZE = 11; // of a stamp, in pixels
const SHAPES = 3;
const REST = "#8a8a8a"; // of values beyond those that have a mark of their own
export const MOST_LOOKS = MARK_COLORS.length * SHAPES;

/** @param {number} look */
function colorOf(look) {
  return look < MOST_LOOKS ? MARK_COLORS[look % MARK_COLORS.length] : REST;
}

/** The corners of a mark in a square of 1; null for a disc. @type {(look: number) => [number, number][]|null} */
function corners(look) {
  const shape = look < MOST_LOOKS ? Math.floor(look / MARK_COLORS.length) : 0;
  if (shape === 0) return null;
  return shape === 1 ? [[0.5, 0.04], [0.96, 0.92], [0.04, 0.92]] : [[0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]];
}

/**
 * A stamp of a mark; `scale`: pixels of the screen in one, `paper`: the colour behind it.
 * @type {(look: number, hollow: boolean, scale: number, paper: string) => HTMLCanvasElement}
 */
export function stampOf(look, hollow, scale, paper) {
  const stamp = document.createElement("canvas");
  [stamp.width, stamp.height] = [SIZE * scale, SIZE * scale];
  const pen = /** @type {CanvasRenderingContext2D} */ (stamp.getContext("2d"));
  pen.scale(scale, scale);
  pen.beginPath();
  if (hollow) pen.rect(2, 2, SIZE - 4, SIZE - 4);
  else if (!corners(look)) pen.arc(SIZE / 2, SIZE / 2, SIZE / 2 - 1.5, 0, 2 * Math.PI);
  else for (const [x, y] of corners(look) ?? []) pen.lineTo(1 + (SIZE - 2) * x, 1 + (SIZE - 2) * y);
  pen.closePath();
  pen.lineWidth = hollow ? 2 : 0.8;
  pen.strokeStyle = hollow ? colorOf(look) : paper;
  pen.fillStyle = hollow ? paper : colorOf(look);
  pen.fill();
  pen.stroke();
  return stamp;
}

/** The same mark for a legend. @type {(look: number, hollow?: boolean) => SVGElement} */
export function markSample(look, hollow = false) {
  const color = colorOf(look);
  const found = corners(look);
  const mark = hollow ? svg("rect", { x: 3, y: 3, width: 8, height: 8, fill: "none", stroke: color, "stroke-width": 2 })
    : found ? svg("polygon", { points: found.map(([x, y]) => `${1 + 12 * x},${1 + 12 * y}`).join(" "), fill: color })
      : svg("circle", { cx: 7, cy: 7, r: 5.5, fill: color });
  return svg("svg", { class: "shape", viewBox: "0 0 14 14", "aria-hidden": "true" }, mark);
}
