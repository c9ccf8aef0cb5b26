// A class for every pixel: its colour over the picture, a legend, and the name of what is pointed at.

import { element, percent } from "./prediction.js";
import { onNewWidth, sharp } from "./patches.js";

const DIMMED = 0.25; // of the opacity, for the classes beside the one that is pointed at
const MOST_HIGH = 640; // CSS px of a tall picture

export class Segments {
  constructor(at, speak) {
    this.at = at;
    this.speak = speak;
    this.result = this.picture = this.mask = this.numbers = null;
    this.kept = this.passing = null; // places in result.classes: chosen in the legend, and pointed at
    this.canvas = at("segmented");
    this.canvas.addEventListener("pointermove", (event) => this.#pass(this.#under(event)));
    this.canvas.addEventListener("pointerleave", () => this.#pass(null));
    this.canvas.addEventListener("click", (event) => this.#keep(this.#under(event)));
    at("opacity").addEventListener("input", () => this.#draw());
    onNewWidth(this.canvas, () => this.#draw());
  }

  // result: {width, height, classes: [{label, share, colour}], mask}; mask: an image; picture: another, or null
  show(result, mask, picture) {
    Object.assign(this, { result, mask, picture, kept: null, passing: null });
    this.numbers = numbersOf(mask, result.classes);
    this.at("legend").replaceChildren(...result.classes.map((one, place) => this.#entry(one, place)));
    this.canvas.setAttribute("aria-label", `The picture under the colours of its classes: ${inWords(result.classes)}`);
    this.#draw();
    this.speak(inWords(result.classes));
  }

  #entry({ label, share, colour }, place) {
    const row = document.createElement("li"), button = element("button", "class"), chip = element("i", "chip");
    chip.style.background = `rgb(${colour.join(" ")})`;
    button.type = "button";
    button.append(chip, element("span", "name", label), element("span", "share", percent(share)));
    button.addEventListener("click", () => this.#keep(place));
    button.addEventListener("pointerenter", () => this.#pass(place));
    button.addEventListener("pointerleave", () => this.#pass(null));
    row.append(button);
    return row;
  }

  #under({ clientX, clientY }) {
    if (!this.result) return null;
    const box = this.canvas.getBoundingClientRect(), { width, height } = this.mask;
    const x = Math.floor(((clientX - box.x) / box.width) * width);
    const y = Math.floor(((clientY - box.y) / box.height) * height);
    return x < 0 || y < 0 || x >= width || y >= height ? null : this.numbers[y * width + x];
  }

  #pass(place) {
    if (place === this.passing) return;
    this.passing = place;
    this.#draw();
  }

  #keep(place) {
    this.kept = place === this.kept ? null : place;
    this.#draw();
    this.speak(this.at("segment-is").textContent);
  }

  #draw() {
    if (!this.result || !this.canvas.clientWidth) return;
    const { width, height } = this.mask, shown = this.passing ?? this.kept;
    this.canvas.style.maxWidth = `${(MOST_HIGH * width) / height}px`;
    const wide = this.canvas.clientWidth, high = (wide * height) / width, context = sharp(this.canvas, wide, high);
    if (this.picture) context.drawImage(this.picture, 0, 0, wide, high);
    const opacity = this.at("opacity").value / 100;
    context.imageSmoothingEnabled = false;
    context.globalAlpha = shown === null ? opacity : DIMMED * opacity;
    context.drawImage(this.mask, 0, 0, wide, high);
    if (shown !== null) {
      context.globalAlpha = Math.max(opacity, 0.3);
      context.drawImage(this.#alone(shown), 0, 0, wide, high);
    }
    context.globalAlpha = 1;
    this.at("opacity-is").textContent = `${this.at("opacity").value} %`;
    this.at("segment-is").textContent = this.#readout(shown);
    [...this.at("legend").children].forEach((row, place) => {
      row.firstChild.setAttribute("aria-pressed", place === this.kept);
      row.classList.toggle("pointed", place === shown);
    });
  }

  #readout(shown) {
    if (shown === null) return `${inWords(this.result.classes)}.`;
    const { label, share } = this.result.classes[shown];
    return `${label}: ${percent(share)} of the picture.`;
  }

  // The mask with one class in its colour, and nothing elsewhere.
  #alone(place) {
    const { width, height } = this.mask, canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
    const pixels = context.createImageData(width, height), values = new Uint32Array(pixels.data.buffer);
    const [red, green, blue] = this.result.classes[place].colour;
    const colour = new Uint32Array(new Uint8Array([red, green, blue, 255]).buffer)[0];
    for (let at = 0; at < values.length; at++) if (this.numbers[at] === place) values[at] = colour;
    context.putImageData(pixels, 0, 0);
    return canvas;
  }
}

// Places in the list of classes, by the colours of the mask: no two classes share one.
function numbersOf(mask, classes) {
  const canvas = new OffscreenCanvas(mask.width, mask.height), context = canvas.getContext("2d");
  context.drawImage(mask, 0, 0);
  const { data } = context.getImageData(0, 0, mask.width, mask.height);
  const places = new Map(classes.map(({ colour: [red, green, blue] }, place) => [(red << 16) | (green << 8) | blue, place]));
  const numbers = new Int16Array(mask.width * mask.height);
  for (let at = 0; at < numbers.length; at++) {
    numbers[at] = places.get((data[4 * at] << 16) | (data[4 * at + 1] << 8) | data[4 * at + 2]) ?? -1;
  }
  return numbers;
}

const inWords = (classes) => classes.slice(0, 3).map(({ label, share }) => `${label} ${percent(share)}`).join(", ");
