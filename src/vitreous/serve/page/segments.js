// A class for every pixel: its colour over the picture, a legend, and the name of what is pointed at.

import { DIMMED, Pointed } from "./pointed.js";
import { percent } from "./prediction.js";


export class Segments extends Pointed {
  constructor(at, speak) {
    super(at, speak, { canvas: "segmented", list: "legend", readout: "segment-is" });
    this.mask = this.numbers = null;
    at("opacity").addEventListener("input", () => this.draw());
  }

  // result: {width, height, classes: [{label, share, colour}], mask}; mask: an image; picture: another, or null
  show(result, mask, picture) {
    Object.assign(this, { result, mask, picture, kept: null, passing: null });
    this.numbers = numbersOf(mask, result.classes);
    this.at("legend").replaceChildren(...result.classes.map(({ label, share, colour }, place) => this.entry("class", label, share, colour, place)));
    this.canvas.setAttribute("aria-label", `The picture under the colours of its classes: ${inWords(result.classes)}`);
    this.draw();
    this.speak(inWords(result.classes));
  }

  under({ clientX, clientY }) {
    if (!this.result) return null;
    const box = this.canvas.getBoundingClientRect(), { width, height } = this.mask;
    const x = Math.floor(((clientX - box.x) / box.width) * width);
    const y = Math.floor(((clientY - box.y) / box.height) * height);
    return x < 0 || y < 0 || x >= width || y >= height ? null : this.numbers[y * width + x];
  }

  draw() {
    if (!this.result || !this.canvas.clientWidth) return;
    const { width, height } = this.mask, shown = this.pointed, { context, wide, high } = this.drawPicture(width, height);
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
    this.say(this.#readout(shown));
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
