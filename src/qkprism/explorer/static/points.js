// Points in two or three dimensions on a canvas: where each stands on the screen, and which of them a lasso holds.

/**
 * @typedef {{x: number, y: number, z: number, look: number}} Point `look`: the place of its mark among marks
 * @typedef {{yaw: number, pitch: number, flat: boolean, width: number, height: number}} Camera
 */

const MARGIN = 26;

/**
 * A cloud that fills a cube from -1 to 1, whatever its units.
 * @param {(number|null)[][]} rows
 * @returns {Float32Array} three numbers a point
 */
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
 * @param {Float32Array} cube
 * @param {Camera} camera
 * @param {Float32Array} onto
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
 * @param {Float32Array} screen
 * @param {number} x
 * @param {number} y
 * @param {number} reach
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
 * @param {Float32Array} screen
 * @param {number} from
 * @param {number} dx
 * @param {number} dy
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

/**
 * The points inside a line that was drawn around them.
 * @param {Float32Array} screen
 * @param {[number, number][]} line
 * @returns {number[]}
 */
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
