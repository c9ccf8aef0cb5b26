// The patches in reading order, as words of a sentence, and their flight from the picture into it.

import { HEAT, onNewWidth, ring, sharp, strength } from "./patches.js";

const START_MS = 900; // in which all words set out, one after the other
const FLY_MS = 550; // that each is on its way

export class Sentence {
  constructor(canvas, flight, onLook) {
    this.canvas = canvas;
    this.flight = flight; // a canvas over everything
    this.patches = null;
    this.state = { token: null, looks: null, colours: null };
    this.landed = Infinity; // how many words are there already
    this.run = 0; // of the flight; an older one ends itself
    const point = (how) => (event) => this.patches && onLook(this.#at(event), how);
    canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && point("pass")(event));
    canvas.addEventListener("pointerleave", () => this.patches && onLook(null, "pass"));
    canvas.addEventListener("click", point("stay"));
    onNewWidth(canvas, () => this.draw());
  }

  // patches: null where they are too many
  show(patches) {
    this.patches = patches;
    this.run++;
    this.flight.hidden = true;
    this.landed = Infinity;
    if (patches) this.canvas.setAttribute("aria-label", `The ${patches.count} squares as words, line by line`);
  }

  look(token, looks, colours) {
    this.state = { token, looks, colours };
    this.draw();
  }

  draw() {
    const { patches, canvas, state } = this, width = canvas.clientWidth;
    if (!patches || !width) return;
    const context = sharp(canvas, width, this.#size(width).height);
    for (let token = 0; token < patches.prefix + patches.count && token < this.landed; token++) {
      const word = this.#word(token, width);
      if (token < patches.prefix) this.#sign(context, word, token);
      else patches.draw(context, token, word);
      if (state.looks) this.#underline(context, word, strength(state.looks[token], state.colours));
      if (token === state.token) ring(context, word);
    }
  }

  #sign(context, { x, y, w, h }, token) {
    const isClass = token === 0 && this.patches.hasClassToken, style = getComputedStyle(this.canvas);
    context.fillStyle = style.getPropertyValue(isClass ? "--accent" : "--hollow");
    context.fillRect(x, y, w, h);
    context.fillStyle = style.getPropertyValue(isClass ? "--on-accent" : "--quiet");
    context.font = `600 ${Math.round(h * 0.7)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(isClass ? "?" : "+", x + w / 2, y + h * 0.54);
  }

  #underline(context, { x, y, w, h }, share) {
    context.fillStyle = `rgb(${HEAT.join(" ")} / ${share})`;
    context.fillRect(x, y + h + 1, w, Math.max(2, Math.min(4, h * 0.15)));
  }

  // ---- where words stand

  #size(width) {
    const { patches } = this, count = patches.prefix + patches.count;
    const w = count <= 30 ? 44 : count <= 70 ? 34 : count <= 300 ? 22 : count <= 700 ? 14 : 9;
    const h = (w * patches.high) / patches.wide, gap = Math.max(3, Math.round(w * 0.2));
    const columns = Math.max(1, Math.floor((width - 4 + gap) / (w + gap)));
    const line = h + gap + Math.max(2, Math.min(4, h * 0.15));
    return { w, h, gap, columns, line, height: Math.ceil(count / columns) * line + 4 };
  }

  #word(token, width) {
    const { w, h, gap, columns, line } = this.#size(width);
    return { x: 2 + (token % columns) * (w + gap), y: 2 + Math.floor(token / columns) * line, w, h };
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect(), { w, gap, columns, line } = this.#size(box.width);
    const column = Math.floor((event.clientX - box.x - 2) / (w + gap));
    const row = Math.floor((event.clientY - box.y - 2) / line);
    const token = row * columns + column, count = this.patches.prefix + this.patches.count;
    return column < 0 || column >= columns || row < 0 || token >= count ? null : token;
  }

  // ---- the flight

  fly(stage) {
    if (!this.patches || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const run = ++this.run, began = performance.now();
    this.landed = 0;
    this.flight.hidden = false;
    const step = (now) => {
      if (run !== this.run) return;
      const isOver = now - began > START_MS + FLY_MS;
      this.landed = isOver ? Infinity : this.#drawFlight(stage, now - began);
      if (isOver) this.flight.hidden = true;
      else requestAnimationFrame(step);
      this.draw();
    };
    requestAnimationFrame(step);
  }

  // Draws those in the air; returns how many have landed.
  #drawFlight(stage, passed) {
    const { patches, flight, canvas } = this, sky = flight.parentElement.getBoundingClientRect();
    const context = sharp(flight, sky.width, sky.height, 1);
    const from = stage.getBoundingClientRect(), to = canvas.getBoundingClientRect(), scale = from.width / patches.width;
    let landed = 0;
    for (let token = 0; token < patches.prefix + patches.count; token++) {
      const share = (passed - (START_MS * token) / (patches.prefix + patches.count)) / FLY_MS;
      if (share >= 1) landed++;
      if (share <= 0 || share >= 1 || token < patches.prefix) continue;
      const start = patches.place(token), end = this.#word(token, to.width), eased = share * share * (3 - 2 * share);
      const mix = (a, b) => a + (b - a) * eased;
      patches.draw(context, token, {
        x: mix(from.x - sky.x + start.x * scale, to.x - sky.x + end.x),
        y: mix(from.y - sky.y + start.y * scale, to.y - sky.y + end.y) - 24 * Math.sin(Math.PI * share),
        w: mix(start.w * scale, end.w), h: mix(start.h * scale, end.h),
      });
    }
    return landed;
  }
}
