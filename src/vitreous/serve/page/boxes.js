// The objects of a picture: a box or a shape each, in the colour of its class, from a score on that the user chooses.

import { HEAT } from "./patches.js";
import { DIMMED, Pointed } from "./pointed.js";
import { percent } from "./prediction.js";
import { Shape } from "./shapes.js";

const MOST_LISTED = 50;
const HOTTEST = 0.8; // opacity of the cell that was looked at most

export class Boxes extends Pointed {
  constructor(at, speak) {
    super(at, speak, { canvas: "boxed", list: "objects", readout: "box-is" });
    at("score").addEventListener("input", () => this.#choose());
  }

  // result: {width, height, threshold, objects: [{label, score, box, query, colour, mask, looks}], looks: {rows,
  // columns, box}}, the surest first, without `looks` where the model cannot be looked into, and without `mask` where it
  // finds boxes alone; picture: an image, or null
  show(result, picture) {
    const isFirst = this.result === null;
    for (const one of result.objects) one.shape = one.mask && new Shape(one.mask, one.box);
    Object.assign(this, { result, picture, kept: null, passing: null });
    if (isFirst) this.at("score").value = Math.ceil(100 * result.threshold);
    this.#choose();
    this.speak(this.#inWords());
  }

  get #shown() {
    const least = this.at("score").value / 100;
    return this.result.objects.filter(({ score }) => score >= least);
  }

  // Another score: another list.
  #choose() {
    if (!this.result) return;
    const shown = this.#shown;
    if (this.kept >= shown.length) this.kept = null;
    this.passing = null;
    this.at("score-is").textContent = `${this.at("score").value} %`;
    this.at("box-looks").hidden = !this.result.looks;
    this.at("objects").replaceChildren(...shown.slice(0, MOST_LISTED).map(({ label, score, colour }, place) => this.entry("object", label, score, colour, place)));
    this.canvas.setAttribute("aria-label", `The picture with its objects marked: ${this.#inWords()}`);
    this.draw();
  }

  // Of the objects under the pointer, the smallest: it lies inside the others.
  under({ clientX, clientY }) {
    if (!this.result) return null;
    const frame = this.canvas.getBoundingClientRect(), { width, height } = this.result;
    const x = ((clientX - frame.x) / frame.width) * width, y = ((clientY - frame.y) / frame.height) * height;
    const area = ({ box: [x0, y0, x1, y1] }) => (x1 - x0) * (y1 - y0);
    const hit = this.#shown.map((one, place) => ({ one, place }))
      .filter(({ one: { shape, box: [x0, y0, x1, y1] } }) => shape ? shape.has(x, y) : x >= x0 && x <= x1 && y >= y0 && y <= y1)
      .sort((a, b) => area(a.one) - area(b.one));
    return hit.length ? hit[0].place : null;
  }

  draw() {
    if (!this.result || !this.canvas.clientWidth) return;
    const { width, height } = this.result, pointed = this.pointed, shown = this.#shown;
    const { context, wide } = this.drawPicture(width, height), scale = wide / width;
    if (pointed !== null && shown[pointed].looks) this.#heat(context, shown[pointed], scale);
    for (let place = shown.length - 1; place >= 0; place--) { // the surest on top
      context.globalAlpha = pointed === null || pointed === place ? 1 : DIMMED;
      this.#outline(context, shown[place], scale, pointed === place);
    }
    context.globalAlpha = 1;
    this.say(pointed === null ? `${this.#inWords()}.` : readout(shown[pointed]));
  }

  // Where the model looked for this object: the attention of the query that says so.
  #heat(context, { looks }, scale) {
    const { rows, columns, box: [x0, y0, x1, y1] } = this.result.looks, canvas = new OffscreenCanvas(columns, rows);
    const inner = canvas.getContext("2d"), pixels = inner.createImageData(columns, rows);
    [...atob(looks)].forEach((letter, cell) => pixels.data.set([...HEAT, HOTTEST * letter.charCodeAt(0)], 4 * cell));
    inner.putImageData(pixels, 0, 0);
    context.fillStyle = "rgb(0 0 0 / 35%)"; // so that it is seen on bright pictures too
    context.fillRect(0, 0, context.canvas.width, context.canvas.height);
    context.drawImage(canvas, x0 * scale, y0 * scale, (x1 - x0) * scale, (y1 - y0) * scale);
  }

  // A shape that is pointed at is not painted over where its query looked: that is mostly inside it.
  #outline(context, { label, score, box, colour, shape, looks }, scale, isPointed) {
    const [x0, y0, x1, y1] = box.map((side) => side * scale), name = `${label} ${percent(score)}`;
    context.lineWidth = isPointed ? 4 : 2.5;
    context.strokeStyle = context.fillStyle = `rgb(${colour.join(" ")})`;
    if (shape) context.drawImage(isPointed && looks ? shape.outlined() : shape.painted(colour), x0, y0, x1 - x0, y1 - y0);
    else context.strokeRect(x0, y0, x1 - x0, y1 - y0);
    context.font = "600 13px system-ui, sans-serif";
    const room = context.measureText(name).width + 8, top = y0 >= 18 ? y0 - 18 : y0;
    const left = Math.max(0, Math.min(x0 - context.lineWidth / 2, this.canvas.clientWidth - room)); // within the picture
    context.fillRect(left, top, room, 18);
    const [red, green, blue] = colour;
    context.fillStyle = 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
    context.fillText(name, left + 4, top + 13.5);
  }

  #inWords() {
    const counts = new Map();
    for (const { label } of this.#shown) counts.set(label, (counts.get(label) ?? 0) + 1);
    const named = [...counts].sort((a, b) => b[1] - a[1]).map(([label, number]) => `${number} ${label}`);
    return named.join(", ") || "Nothing is found with such a score";
  }
}

const readout = ({ label, score, query, box: [x0, y0, x1, y1] }) =>
  `${label}, ${percent(score)}: ${Math.round(x1 - x0)} x ${Math.round(y1 - y0)} px, found by query ${query}.`;
