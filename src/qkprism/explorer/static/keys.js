// Groups of buttons: one stop of the Tab key each, with arrows, Home and End within; clicks and pointing by place.

/** @typedef {{columns?: () => number, lines?: boolean}} Shape `columns`: of a grid, for up and down; `lines`: up and down
 *   go to the nearest button of another line, as in a text */

/** @typedef {{choose: (place: number) => void, point?: (place: number|null) => void}} Act what a click and pointing do */

/** @type {(group: HTMLElement|SVGElement, shape?: Shape) => void} */
export function roving(group, shape = {}) {
  group.addEventListener("keydown", (given) => {
    const event = /** @type {KeyboardEvent} */ (given);
    const buttons = /** @type {HTMLElement[]} */ ([...group.querySelectorAll("[data-rove]")]);
    const at = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = destination(event.key, buttons, at, shape);
    if (to === null) return;
    event.preventDefault();
    setStop(buttons, to);
    buttons[to].focus();
  });
}

/**
 * Buttons that have a `data-place`: a click chooses one; the pointer or the focus points at one, and at none when it leaves.
 * @type {(group: HTMLElement, act: Act, shape?: Shape) => void}
 */
export function placed(group, { choose, point }, shape = {}) {
  roving(group, shape);
  const placeOf = (/** @type {Event} */ event) => {
    const button = /** @type {HTMLElement|null} */ (/** @type {HTMLElement} */ (event.target).closest("[data-place]"));
    return button && Number(button.dataset.place);
  };
  group.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place !== null) choose(place);
  });
  if (!point) return;
  for (const event of ["pointerover", "focusin"]) group.addEventListener(event, (e) => point(placeOf(e)));
  for (const event of ["pointerleave", "focusout"]) group.addEventListener(event, () => point(null));
}

/** Which button the Tab key reaches. @type {(buttons: (HTMLElement|SVGElement)[], at: number) => void} */
export function setStop(buttons, at) {
  buttons.forEach((button, i) => button.setAttribute("tabindex", i === at ? "0" : "-1"));
}

/** @type {(key: string, buttons: HTMLElement[], at: number, shape: Shape) => number|null} */
function destination(key, buttons, at, { columns, lines }) {
  const last = buttons.length - 1;
  const within = (/** @type {number} */ to) => (to >= 0 && to <= last ? to : at);
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === "ArrowRight") return within(at + 1);
  if (key === "ArrowLeft") return within(at - 1);
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const step = key === "ArrowDown" ? 1 : -1;
  return lines ? nextLine(buttons, at, step) : within(at + step * (columns ? columns() : 1));
}

/** The nearest button of the line above or below. @type {(buttons: HTMLElement[], at: number, step: number) => number} */
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
