// How alike the addresses of places are: for one place, or for all of them at once.

import { HEAT, onNewWidth, sharp } from "./patches.js";

export class Places {
  constructor(canvas, text, { tokens, positions }) {
    this.canvas = canvas;
    this.text = text;
    [this.rows, this.columns] = positions.grid ?? tokens.grid;
    this.aspect = (tokens.patch_px[0] * tokens.grid[0]) / (tokens.patch_px[1] * tokens.grid[1]);
    this.place = null; // that is enlarged
    this.why = positions.why;
    this.areLearned = positions.learned;
    // (place, place), as bytes: 255 is the same, 0 the opposite
    const sent = positions.similarity;
    this.levels = sent === null ? null : Uint8Array.from(atob(sent), (one) => one.charCodeAt(0));
    canvas.hidden = this.levels === null;
    onNewWidth(canvas, () => this.draw());
  }

  // at: fractions of width and height, or null for all places
  look(at, name) {
    this.place = at && this.columns * Math.floor(at[1] * this.rows) + Math.floor(at[0] * this.columns);
    this.text.textContent = this.#inWords(name);
    this.canvas.setAttribute("aria-label", this.place === null ? "Likeness of all places" : `Places like ${name}`);
    this.draw();
  }

  #inWords(name) {
    if (this.levels === null) return `There is no table of places to show: ${this.why}.`;
    if (this.place === null) {
      const address = this.areLearned
        ? "The model was never told which squares are neighbours: it has learnt an address for every place."
        : "Every square comes with the address of its place, made of sines and cosines of its row and its column.";
      return `${address} Each little map is one place; colour marks places with a like address. Point at a square to `
        + "enlarge its map.";
    }
    return this.areLearned
      ? `Colour marks the places whose learnt address is like that of ${name}. Often these are its neighbours, its row `
        + "and its column: the model found out by itself how pictures are laid out."
      : `Colour marks the places whose address is like that of ${name}: its neighbours, its row and its column.`;
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (this.levels === null || !width) return;
    const height = width * this.aspect, context = sharp(this.canvas, width, height);
    const all = { x: 0, y: 0, w: width, h: height };
    if (this.place !== null) return this.#map(context, this.place, all, width / this.columns > 8 ? 1 : 0);
    const gap = this.columns > 20 ? 1 : this.columns > 8 ? 2 : 5; // between maps, not within: each is to be seen as one
    for (let place = 0; place < this.rows * this.columns; place++) {
      this.#map(context, place, this.#cell(place, all, gap), 0);
    }
  }

  #cell(place, { x, y, w, h }, gap) {
    const [wide, high] = [(w + gap) / this.columns, (h + gap) / this.rows];
    const [row, column] = [Math.floor(place / this.columns), place % this.columns];
    return { x: x + column * wide, y: y + row * high, w: wide - gap, h: high - gap };
  }

  #map(context, place, box, gap) {
    const count = this.rows * this.columns, row = this.levels.subarray(place * count, (place + 1) * count);
    context.fillStyle = getComputedStyle(this.canvas).getPropertyValue("--hollow");
    context.fillRect(box.x, box.y, box.w, box.h);
    const least = Math.min(...row), span = Math.max(1, Math.max(...row) - least);
    for (let other = 0; other < count; other++) {
      const cell = this.#cell(other, box, gap);
      context.fillStyle = `rgb(${HEAT.join(" ")} / ${(row[other] - least) / span})`;
      context.fillRect(cell.x, cell.y, cell.w, cell.h);
    }
  }
}
