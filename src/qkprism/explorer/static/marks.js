// The marks of points: ten colours by three shapes, drawn once and stamped many times; a query is hollow.

import { svg } from "./dom.js";

// as in the figures: told apart under every common colour blindness, and by lightness in print
export const MARK_COLORS = [
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

/**
 * The corners of a mark in a square of 1; null for a disc.
 * @param {number} look
 * @returns {[number, number][]|null}
 */
function corners(look) {
  const shape = look < MOST_LOOKS ? Math.floor(look / MARK_COLORS.length) : 0;
  if (shape === 0) return null;
  return shape === 1 ? [[0.5, 0.04], [0.96, 0.92], [0.04, 0.92]] : [[0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5]];
}

/**
 * A stamp of a mark.
 * @param {number} look
 * @param {boolean} hollow
 * @param {number} scale pixels of the screen in one
 * @param {string} paper behind it
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

/**
 * The same mark for a legend.
 * @param {number} look
 * @param {boolean} [hollow]
 */
export function markSample(look, hollow = false) {
  const color = colorOf(look);
  const found = corners(look);
  const mark = hollow ? svg("rect", { x: 3, y: 3, width: 8, height: 8, fill: "none", stroke: color, "stroke-width": 2 })
    : found ? svg("polygon", { points: found.map(([x, y]) => `${1 + 12 * x},${1 + 12 * y}`).join(" "), fill: color })
      : svg("circle", { cx: 7, cy: 7, r: 5.5, fill: color });
  return svg("svg", { class: "shape", viewBox: "0 0 14 14", "aria-hidden": "true" }, mark);
}
