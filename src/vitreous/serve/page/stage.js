// The picture with its patches, and where a token looks.

import { HEAT, onNewWidth, ring, sharp, strength } from "./patches.js";

export class Stage {
  // onLook(token or null, how): how is "pass" (pointing), "stay" (tapped or clicked) or "keys"
  constructor(canvas, onLook) {
    this.canvas = canvas;
    this.onLook = onLook;
    this.patches = null;
    this.state = { token: null, looks: null };
    canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.#point(event, "pass"));
    canvas.addEventListener("pointerleave", () => this.patches && onLook(null, "pass"));
    canvas.addEventListener("click", (event) => this.#point(event, "stay"));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    onNewWidth(canvas, () => this.draw());
  }

  showPatches(patches) {
    this.patches = patches;
    this.canvas.setAttribute("aria-label",
      `The picture, cut into ${patches.count} squares. Arrow keys go from square to square, Escape back to the whole.`);
  }

  // looks: how much the token looks at each token, which lie as `seen` says; or null for the bare picture
  // window: those that it can see at all, or null where it can see all
  look(token, looks, { colours, seen, window }) {
    this.state = { token, looks, colours, seen, window };
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width || !this.patches) return;
    const { patches, state } = this, scale = width / patches.width;
    const context = sharp(this.canvas, width, patches.height * scale);
    context.imageSmoothingEnabled = !patches.picture.isCoarse;
    const shown = state.looks ? patches.picture.pale : patches.picture.image;
    context.drawImage(shown, 0, 0, width, patches.height * scale);
    if (state.looks) this.#heat(context, scale);
    this.#lines(context, scale);
    if (state.looks && state.window) this.#frame(context, scale);
    if (state.token !== null && state.token >= patches.prefix) {
      const place = scaled(patches.place(state.token), scale);
      patches.draw(context, state.token, place);
      ring(context, place);
    }
  }

  #heat(context, scale) {
    const { looks, colours, seen } = this.state;
    for (let token = seen.prefix; token < looks.length; token++) {
      const { x, y, w, h } = scaled(seen.place(token), scale);
      context.fillStyle = `rgb(${HEAT.join(" ")} / ${0.88 * strength(looks[token], colours)})`;
      context.fillRect(x, y, w, h);
    }
  }

  #frame(context, scale) {
    const { seen, window } = this.state, places = window.map((token) => scaled(seen.place(token), scale));
    const least = (of) => Math.min(...places.map(of)), most = (of) => Math.max(...places.map(of));
    const [x, y] = [least((one) => one.x), least((one) => one.y)];
    const [right, bottom] = [most((one) => one.x + one.w), most((one) => one.y + one.h)];
    context.strokeStyle = `rgb(${HEAT.join(" ")})`;
    context.lineWidth = 1.5;
    context.strokeRect(x, y, right - x, bottom - y);
  }

  #lines(context, scale) {
    const { patches } = this, [w, h] = [patches.wide * scale, patches.high * scale];
    context.fillStyle = getComputedStyle(this.canvas).getPropertyValue("--card");
    const thick = w > 60 ? 3 : w > 24 ? 1.5 : w > 12 ? 1 : 0; // small ones would be covered by their lines
    for (let column = 1; column < patches.columns; column++) {
      context.fillRect(column * w - thick / 2, 0, thick, patches.rows * h);
    }
    for (let row = 1; row < patches.rows; row++) context.fillRect(0, row * h - thick / 2, patches.columns * w, thick);
  }

  #point(event, how) {
    if (!this.patches) return;
    const box = this.canvas.getBoundingClientRect();
    this.onLook(this.patches.at((event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height), how);
  }

  #key(event) {
    const { patches } = this;
    if (!patches) return;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (step) {
      event.preventDefault();
      this.onLook(this.#neighbour(step), "keys");
    } else if (event.key === "Escape" || event.key === "Home") {
      event.preventDefault();
      this.onLook(null, "keys");
    }
  }

  #neighbour([down, right]) {
    const { patches } = this, { token } = this.state;
    if (token === null || token < patches.prefix) return patches.prefix; // from the whole to the first square
    const index = token - patches.prefix;
    const row = clamp(Math.floor(index / patches.columns) + down, patches.rows);
    return patches.prefix + row * patches.columns + clamp((index % patches.columns) + right, patches.columns);
  }
}

const clamp = (value, size) => Math.max(0, Math.min(size - 1, value));
const scaled = ({ x, y, w, h }, scale) => ({ x: x * scale, y: y * scale, w: w * scale, h: h * scale });
