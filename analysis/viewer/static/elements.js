/** Elements of the page. What data says only ever becomes text: nothing here reads markup. */

/** An element; an attribute "onclick" is a listener, true is an attribute without a value, false and null leave it out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function button(label, onclick, attributes = {}) {
  return make("button", { type: "button", onclick, ...attributes }, label);
}

/** A text of the collection or of a person: of any script, in its own direction. */
export function words(tag, text, attributes = {}) {
  return make(tag, { dir: "auto", ...attributes }, text);
}

/** A control under its label. */
export function labelled(label, control, attributes = {}) {
  return make("label", attributes, make("span", {}, label), control);
}

/** A select with [value, label] options. */
export function choice(options, onchange, attributes = {}) {
  return make("select", { onchange, ...attributes },
    ...options.map(([value, label]) => make("option", { value, dir: "auto" }, label)));
}

/** Other options for a select; it keeps its value where that is still one of them. */
export function setChoices(select, options, value) {
  select.replaceChildren(...options.map(([key, label]) => make("option", { value: key }, label)));
  select.value = options.some(([key]) => `${key}` === `${value}`) ? value : options[0][0];
}

/** Calls `act` once no further call has come for some milliseconds. */
export function delayed(milliseconds, act) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(act, milliseconds, ...given);
  };
}
