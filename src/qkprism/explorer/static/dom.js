// Elements. Text is only ever set as text: nothing here reads markup.

/**
 * @typedef {Record<string, any>} Properties
 * `class`, `text`, `data` (a record), `on` (listeners by event), `style` (a record); anything else is an attribute.
 */

/**
 * An element with its properties and children.
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...(Node|string|null|undefined)} children
 * @returns {HTMLElement}
 */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  dress(made, properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/**
 * An element of a drawing.
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...Node} children
 * @returns {SVGElement}
 */
export function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  dress(made, properties);
  made.append(...children);
  return made;
}

/**
 * Put properties on an element.
 * @param {HTMLElement|SVGElement} made
 * @param {Properties} properties
 */
function dress(made, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.setAttribute("class", value);
    else if (name === "text") made.textContent = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * Make these the only children.
 * @param {Element} place
 * @param {...(Node|string|null|undefined)} children
 */
export function fill(place, ...children) {
  place.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}
