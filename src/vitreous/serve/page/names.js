// A picture in one's own words: how likely each name is among those typed, and how alike each place is to two of them.

import { partSeen } from "./given.js";
import { HEAT, Picture, onNewWidth, sharp } from "./patches.js";
import { element, percent } from "./prediction.js";

const REST_MS = 250; // after a letter, until what is typed is asked about
const TYPED_FIRST = 6; // names that are there at the start, where there are some to offer

export class Names {
  // ask(names, asTyped, signal): what the server says of the picture that is shown
  constructor(at, { preprocessing, picture_px: size }, { ask, complain, calm, speak }) {
    Object.assign(this, { at, preprocessing, size, ask, complain, speak });
    this.result = this.picture = this.under = this.rest = null;
    this.hasPicture = false;
    this.chosen = []; // the two names whose places are shown, the one chosen last at the end
    this.views = ["one", "other"].map((name) => new View(at(name), (index) => this.#point(index)));
    at("typed").addEventListener("input", () => {
      calm();
      clearTimeout(this.rest);
      this.rest = setTimeout(() => this.#again(), REST_MS);
    });
    at("sentences").addEventListener("input", () => {
      calm();
      this.#again();
    });
  }

  // Something to begin with, unless something has been typed.
  offer(names) {
    const found = [...new Set(names.map((name) => name.replaceAll(",", " ").trim()))].filter(Boolean).slice(0, TYPED_FIRST);
    if (found.length < 2 || this.at("typed").value) return;
    this.at("typed").value = found.join("\n");
    this.#again();
  }

  // image: the picture as it was given, or null where the browser cannot read it
  async show(image) {
    this.hasPicture = true;
    this.picture = image && this.#seen(image);
    this.views.forEach((view) => (view.picture = this.picture));
    await this.#again();
  }

  get #typed() {
    return [...new Set(this.at("typed").value.split(/[,\n]/).map((name) => name.trim()).filter(Boolean))];
  }

  async #again() {
    clearTimeout(this.rest);
    this.under?.abort();
    this.under = new AbortController();
    const { signal } = this.under, names = this.#typed;
    if (!this.hasPicture) return;
    try {
      const result = names.length ? await this.ask(names, !this.at("sentences").checked, signal) : { top: [] };
      signal.throwIfAborted();
      this.result = result;
      this.#choose(names);
      this.#draw(names);
      this.speak(this.at("named-is").textContent);
    } catch (error) {
      if (error.name !== "AbortError") this.at("named-is").textContent = ""; // it was about other names
      this.complain(error, () => this.#again());
    }
  }

  // Those chosen before, if they are still there; then the likeliest.
  #choose(names) {
    const best = this.result.top.map(({ label }) => label).reverse();
    const kept = this.chosen.filter((name) => names.includes(name));
    this.chosen = [...best.filter((name) => !kept.includes(name)), ...kept].slice(-2);
  }

  #draw(names) {
    const { top, places } = this.result, byName = new Map(top.map((each) => [each.label, each]));
    this.at("scores").replaceChildren(...names.map((name) => this.#bar(byName.get(name), names.length > 1)));
    this.at("named-is").textContent = inWords(top);
    const shown = names.filter((name) => this.chosen.includes(name)).map((name) => placed(byName.get(name), places));
    const span = Math.max(...shown.map(spanOf));
    this.views.forEach((view, place) => view.show(shown[place] ?? null, span));
  }

  #bar({ label, probability, similarity, match }, isCompared) {
    const row = document.createElement("li"), button = element("button", "score"), track = element("span", "bar");
    const filled = document.createElement("i"), isChosen = this.chosen.includes(label);
    const share = isCompared ? probability : match;
    filled.style.setProperty("--share", share ?? Math.max(0, similarity));
    track.append(filled);
    button.type = "button";
    button.title = `Show where it is, beside another one (cosine ${similarity.toFixed(3)})`;
    button.setAttribute("aria-pressed", isChosen);
    button.append(element("span", "name", label), element("span", "share", share === undefined ? similarity.toFixed(2) : percent(share)), track);
    button.addEventListener("click", () => {
      this.chosen = [...this.chosen.filter((name) => name !== label), label].slice(-2);
      this.#draw(this.#typed.filter((name) => this.result.top.some((each) => each.label === name)));
    });
    row.append(button);
    return row;
  }

  // The part of the picture that the model sees, at its size.
  #seen(image) {
    const { naturalWidth: width, naturalHeight: height } = image, part = partSeen(this.preprocessing, width, height);
    const [high, wide] = this.size, canvas = new OffscreenCanvas(wide, high);
    canvas.getContext("2d").drawImage(image, part.left * width, part.top * height, part.width * width, part.height * height, 0, 0, wide, high);
    return new Picture(canvas, this.size);
  }

  #point(index) {
    this.views.forEach((view) => view.point(index));
  }
}

// One name and the places that are like it.
class View {
  // onPoint(place or null)
  constructor(figure, onPoint) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.picture = this.named = this.pointed = null;
    this.canvas.addEventListener("pointermove", (event) => onPoint(this.#under(event)));
    this.canvas.addEventListener("pointerleave", () => onPoint(null));
    onNewWidth(this.canvas, () => this.draw());
  }

  // named: {label, similarity, rows, columns, levels}, or null; span: that the full colour stands for
  show(named, span) {
    Object.assign(this, { named, span, pointed: null });
    this.figure.hidden = !named?.levels || this.picture === null;
    this.canvas.setAttribute("aria-label", named ? `The places that are like ${named.label}` : "");
    this.draw();
  }

  // index: of a place, or null
  point(index) {
    if (index === this.pointed) return;
    this.pointed = index;
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (this.figure.hidden || !width) return;
    const { label, similarity, rows, columns, levels } = this.named, least = Math.min(...levels);
    const height = (width * this.picture.height) / this.picture.width, context = sharp(this.canvas, width, height);
    context.imageSmoothingEnabled = !this.picture.isCoarse;
    context.drawImage(this.picture.pale, 0, 0, width, height);
    const [wide, high] = [width / columns, height / rows];
    levels.forEach((level, index) => {
      context.fillStyle = `rgb(${HEAT.join(" ")} / ${0.88 * ((level - least) / this.span) ** 2})`;
      context.fillRect((index % columns) * wide, Math.floor(index / columns) * high, wide, high);
    });
    this.figure.querySelector("figcaption b").textContent = label;
    const isHere = this.pointed !== null, alike = isHere ? levels[this.pointed] : similarity;
    this.figure.querySelector("figcaption span").textContent = `${alike.toFixed(2)} alike${isHere ? " here" : ""}`;
  }

  #under({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect(), { rows, columns } = this.named;
    const column = Math.floor(((clientX - box.x) / box.width) * columns), row = Math.floor(((clientY - box.y) / box.height) * rows);
    return row < 0 || column < 0 || row >= rows || column >= columns ? null : row * columns + column;
  }
}

// What the server says of a name, with cosines of the places; without them where the model has none.
function placed(named, places) {
  if (!places) return named;
  const { rows, columns, least, most } = places, bytes = Uint8Array.from(atob(named.places), (one) => one.charCodeAt(0));
  return { ...named, rows, columns, levels: Array.from(bytes, (byte) => least + (byte / 255) * (most - least)) };
}

// Some names are nearer to everything than others: what counts is how much more alike one place is than another. The
// largest difference of those that are shown gets the full colour; a name that is nowhere in particular stays pale.
const spanOf = ({ levels }) => (levels ? Math.max(...levels) - Math.min(...levels) : 0) || 1;

function inWords(top) {
  if (top.length === 0) return "Type what might be in the picture.";
  const [{ label, probability, match }] = top;
  if (top.length === 1 && match !== undefined) return `The probability that this fits the picture: ${percent(match)}, whatever else may be in it.`;
  if (top.length === 1) return "One name alone has no probability: type another to compare it with.";
  return `Most likely ${label}: ${percent(probability)}, among these. Leave the right one out, and another wins.`;
}
