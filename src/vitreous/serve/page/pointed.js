// A picture with things on it that can be pointed at, on the picture or in a list beside it; a click keeps one.

import { onNewWidth, sharp } from "./patches.js";
import { element, percent } from "./prediction.js";

export const DIMMED = 0.25; // of the opacity, for what is beside the thing that is pointed at
const MOST_HIGH = 640; // CSS px of a tall picture

// Subclasses have under(event), the place of the thing there or null, and draw().
export class Pointed {
  constructor(at, speak, { canvas, list, readout }) {
    Object.assign(this, { at, speak, list, readout });
    this.result = this.picture = null;
    this.kept = this.passing = null; // places in the list: chosen, and pointed at
    this.canvas = at(canvas);
    this.canvas.addEventListener("pointermove", (event) => this.pass(this.under(event)));
    this.canvas.addEventListener("pointerleave", () => this.pass(null));
    this.canvas.addEventListener("click", (event) => this.keep(this.under(event)));
    onNewWidth(this.canvas, () => this.draw());
  }

  get pointed() {
    return this.passing ?? this.kept;
  }

  entry(kind, label, share, colour, place) {
    const row = document.createElement("li"), button = element("button", kind), chip = element("i", "chip");
    chip.style.background = `rgb(${colour.join(" ")})`;
    button.type = "button";
    button.append(chip, element("span", "name", label), element("span", "share", percent(share)));
    button.addEventListener("click", () => this.keep(place));
    button.addEventListener("pointerenter", () => this.pass(place));
    button.addEventListener("pointerleave", () => this.pass(null));
    row.append(button);
    return row;
  }

  pass(place) {
    if (place === this.passing) return;
    this.passing = place;
    this.draw();
  }

  keep(place) {
    this.kept = place === this.kept ? null : place;
    this.draw();
    this.speak(this.at(this.readout).textContent);
  }

  // The picture as wide as there is room, and how wide and high that is.
  drawPicture(width, height) {
    this.canvas.style.maxWidth = `${(MOST_HIGH * width) / height}px`;
    const wide = this.canvas.clientWidth, high = (wide * height) / width, context = sharp(this.canvas, wide, high);
    if (this.picture) context.drawImage(this.picture, 0, 0, wide, high);
    return { context, wide, high };
  }

  say(words) {
    this.at(this.readout).textContent = words;
    [...this.at(this.list).children].forEach((row, place) => {
      row.firstChild.setAttribute("aria-pressed", place === this.kept);
      row.classList.toggle("pointed", place === this.pointed);
    });
  }
}
