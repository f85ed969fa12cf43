/** A matrix as a heat map: of a pair document tokens are rows, query tokens columns. */

import { readable } from "./bars.js";
import { scale } from "./colours.js";
import { make } from "./elements.js";
import { shown } from "./numbers.js";

const CELL = 16; // pixels

export class Matrix {
  /** `on.point(row, column)` when a cell is pointed at, `on.leave()` afterwards; `sides`: what rows and columns are. */
  constructor(on, sides = ["document tokens", "query tokens"]) {
    [this.on, this.sides] = [on, sides];
    this.heatmap = make("div", { class: "heatmap", tabindex: "0", role: "img" });
    this.legend = make("div", { class: "legend" });
    this.element = make("div", { class: "matrix" }, this.heatmap, this.legend);
  }

  /** Draws numbers (M rows of N), framing cells of equal tokens. */
  show(numbers, documentTokens, queryTokens, name) {
    const flat = numbers.flat();
    const shades = scale(least(flat), most(flat));
    const listeners = { onmousemove: (event) => this.point(event), onmouseleave: () => this.on.leave() };
    this.cells = make("div", { class: "cells", ...listeners }, this.canvas(numbers, shades, documentTokens, queryTokens));
    [this.rows, this.columns] = [documentTokens.length, queryTokens.length];
    const names = (tokens) => tokens.map((token) => make("span", { title: token }, make("bdi", {}, readable(token))));
    const { scrollTop, scrollLeft } = this.heatmap;
    const [down, across] = this.sides;
    this.heatmap.replaceChildren(make("div", { class: "grid" },
      make("div", { class: "corner" }, `${across.split(" ")[0]} →`, make("br"), `${down.split(" ")[0]} ↓`),
      make("div", { class: "column-names" }, ...names(queryTokens)),
      make("div", { class: "row-names" }, ...names(documentTokens)), this.cells));
    this.heatmap.scrollTo(scrollLeft, scrollTop);
    this.heatmap.setAttribute("aria-label", `Matrix of the ${name}: ${this.rows} ${down} by `
      + `${this.columns} ${across}; what is next to it says the same in words`);
    this.explain(shades, name, documentTokens.some((token) => queryTokens.includes(token)));
  }

  canvas(numbers, shades, documentTokens, queryTokens) {
    const [width, height] = [queryTokens.length * CELL, documentTokens.length * CELL];
    const density = window.devicePixelRatio || 1;
    const canvas = make("canvas", { width: width * density, height: height * density });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = canvas.getContext("2d");
    context.scale(density, density);
    numbers.forEach((row, i) => row.forEach((value, j) => {
      context.fillStyle = value === null ? "#ddd" : shades.colour(value);
      context.fillRect(j * CELL, i * CELL, CELL - 0.5, CELL - 0.5);
    }));
    context.strokeStyle = "#d55e00";
    context.lineWidth = 1.5;
    documentTokens.forEach((token, i) => queryTokens.forEach((other, j) => {
      if (token === other) context.strokeRect(j * CELL + 1, i * CELL + 1, CELL - 2.5, CELL - 2.5);
    }));
    return canvas;
  }

  explain(shades, name, equal) {
    const ramp = make("span", { class: "ramp" });
    ramp.style.background = shades.gradient;
    this.legend.replaceChildren(make("span", {}, `${name}:`), shown(shades.low, 2), ramp, shown(shades.high, 2),
      ...(equal ? [make("span", { class: "equal-key" }), "equal tokens"] : []));
  }

  point(event) {
    const box = this.cells.getBoundingClientRect();
    const place = (distance, count) => Math.min(count - 1, Math.max(0, Math.floor(distance / CELL)));
    this.on.point(place(event.clientY - box.top, this.rows), place(event.clientX - box.left, this.columns));
  }

  /** Frames a row or a column. */
  band(side, index) {
    const band = make("div", { class: "band" });
    const [along, across] = side === "document" ? ["top", "height"] : ["left", "width"];
    const whole = { top: 0, left: 0, width: "100%", height: "100%" };
    Object.assign(band.style, whole, { [along]: `${index * CELL}px`, [across]: `${CELL}px` });
    this.cells?.append(band);
  }

  /** Scrolls the matrix, not the page, to a row. */
  reveal(row) {
    const head = this.heatmap.querySelector(".column-names").offsetHeight;
    const [top, room] = [row * CELL - this.heatmap.scrollTop, this.heatmap.clientHeight - head - CELL];
    if (top < 0 || top > room) this.heatmap.scrollTop = row * CELL - room / 2;
  }

  clear() {
    this.cells?.querySelectorAll(".band").forEach((band) => band.remove());
  }
}

const least = (numbers) => numbers.reduce((low, value) => Math.min(low, value ?? low), Infinity);
const most = (numbers) => numbers.reduce((high, value) => Math.max(high, value ?? high), -Infinity);
