// One stop of the Tab key for a group of buttons; arrows, Home and End move within it.

/**
 * @param {HTMLElement} group
 * @param {{columns?: () => number, lines?: boolean}} [how] `columns`: of a grid, for up and down; `lines`: up and down
 *   go to the nearest button of another line, as in a text
 */
export function roving(group, how = {}) {
  group.addEventListener("keydown", (event) => {
    const buttons = /** @type {HTMLElement[]} */ ([...group.querySelectorAll("[data-rove]")]);
    const at = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = destination(event.key, buttons, at, how);
    if (to === null) return;
    event.preventDefault();
    setStop(buttons, to);
    buttons[to].focus();
  });
}

/**
 * Which button the Tab key reaches.
 * @param {HTMLElement[]} buttons
 * @param {number} at
 */
export function setStop(buttons, at) {
  buttons.forEach((button, i) => button.setAttribute("tabindex", i === at ? "0" : "-1"));
}

/**
 * @param {string} key
 * @param {HTMLElement[]} buttons
 * @param {number} at
 * @param {{columns?: () => number, lines?: boolean}} how
 * @returns {number|null}
 */
function destination(key, buttons, at, how) {
  const last = buttons.length - 1;
  const across = how.columns ? how.columns() : 1;
  const within = (/** @type {number} */ to) => (to >= 0 && to <= last ? to : at);
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === "ArrowRight") return within(at + 1);
  if (key === "ArrowLeft") return within(at - 1);
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const step = key === "ArrowDown" ? 1 : -1;
  return how.lines ? nextLine(buttons, at, step) : within(at + step * across);
}

/**
 * The nearest button of the line above or below.
 * @param {HTMLElement[]} buttons
 * @param {number} at
 * @param {number} step
 */
function nextLine(buttons, at, step) {
  const from = buttons[at].getBoundingClientRect();
  let best = at;
  let least = Infinity;
  let line = null;
  for (let i = at + step; i >= 0 && i < buttons.length; i += step) {
    const box = buttons[i].getBoundingClientRect();
    if (Math.abs(box.top - from.top) < from.height / 2) continue;
    if (line === null) line = box.top;
    if (Math.abs(box.top - line) > box.height / 2) break;
    const away = Math.abs(box.left - from.left);
    if (away < least) [best, least] = [i, away];
  }
  return best;
}
