// The spectrum of a feature: strengths beside their nulls, and the held-out t of every direction.

import { el, svg } from "./dom.js";

const WIDTH_OF = 300;
const HEIGHT_OF = 150;
const AT_LEFT = 38;
const BELOW = 30;
const ABOVE = 8;

/** @param {import("./source.js").FeatureFacts} feature */
export function spectrumPicture(feature) {
  return el("div", { class: "halves columns spectra" },
    panel("strength", feature, feature.strength, [["null", feature.null], ["shuffled", feature.shuffled]]),
    panel("held-out t", feature, feature.t, [["threshold", feature.t.map(() => feature.threshold)]]));
}

/**
 * @param {string} title
 * @param {import("./source.js").FeatureFacts} feature
 * @param {(number|null)[]} values
 * @param {[string, (number|null)[]][]} lines
 */
function panel(title, feature, values, lines) {
  const all = [...values, ...lines.flatMap(([, line]) => line)].filter((one) => one !== null);
  const [low, high] = [Math.min(0, ...all), Math.max(1e-9, ...all)];
  const step = (WIDTH_OF - AT_LEFT - 4) / values.length;
  const y = (/** @type {number} */ value) => HEIGHT_OF - BELOW - ((HEIGHT_OF - BELOW - ABOVE) * (value - low)) / (high - low);
  const bars = values.map((value, i) => svg("rect", {
    x: AT_LEFT + i * step + 1, width: Math.max(1, step - 2), y: Math.min(y(value ?? 0), y(0)), height: Math.abs(y(value ?? 0) - y(0)),
    class: i < feature.rank ? "direction within" : "direction" }));
  const drawn = lines.map(([kind, line]) => svg("polyline", {
    points: line.map((value, i) => `${AT_LEFT + (i + 0.5) * step},${y(value ?? 0)}`).join(" "), class: `null-line ${kind}` }));
  const told = `${title} of ${feature.name}, direction by direction: ${values.slice(0, 5).map((one) => (one ?? 0).toFixed(2)).join(", ")}` +
    `; ${lines.map(([kind, line]) => `${kind} ${(line[0] ?? 0).toFixed(2)}`).join(", ")}`;
  return el("figure", {}, svg("svg", { viewBox: `0 0 ${WIDTH_OF} ${HEIGHT_OF}`, class: "spectrum", role: "img", "aria-label": told },
    ...bars, ...drawn, svg("line", { x1: AT_LEFT, x2: WIDTH_OF, y1: y(0), y2: y(0), class: "zero" }),
    svg("text", { x: AT_LEFT - 4, y: y(high) + 8, class: "tick-text", "text-anchor": "end", text: high.toPrecision(2) }),
    svg("text", { x: AT_LEFT - 4, y: y(0) + 3, class: "tick-text", "text-anchor": "end", text: "0" }),
    svg("text", { x: (AT_LEFT + WIDTH_OF) / 2, y: HEIGHT_OF - 8, class: "tick-text", "text-anchor": "middle", text: `direction, 1 to ${values.length}` })),
  el("figcaption", { class: "hint", text: title === "strength" ? "Strength; lines: the highest that random signs reach, and (dashed) sides dealt anew." :
    "Held-out t; the line is what chance does not reach." }));
}
