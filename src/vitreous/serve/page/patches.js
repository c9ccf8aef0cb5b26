// Where patches lie on a picture, and how they are drawn.

export const HEAT = [11, 160, 178];

// What the model sees of a picture, in colour and pale.
export class Picture {
  constructor(image, [height, width]) {
    Object.assign(this, { image, height, width });
    this.isCoarse = Math.max(width, height) <= 64; // its pixels are to be seen as such
    this.pale = pale(image, width, height);
  }
}

export class Patches {
  constructor({ grid, prefix, pool, patch_px }, picture) {
    [this.rows, this.columns] = grid;
    [this.high, this.wide] = patch_px; // of a patch, in pixels of the picture
    this.prefix = prefix;
    this.hasClassToken = pool === "class";
    this.picture = picture;
    ({ height: this.height, width: this.width } = picture);
  }

  // Whether tokens of both lie at the same places.
  isLike(other) {
    return ["rows", "columns", "high", "wide", "prefix"].every((name) => this[name] === other[name]);
  }

  get count() {
    return this.rows * this.columns;
  }

  // Of a token that is a patch: its place in pixels of the picture.
  place(token) {
    const index = token - this.prefix;
    const [x, y] = [(index % this.columns) * this.wide, Math.floor(index / this.columns) * this.high];
    return { x, y, w: Math.min(this.wide, this.width - x), h: Math.min(this.high, this.height - y) }; // not the padding
  }

  // The patch at a place given as fractions of width and height.
  at(x, y) {
    const column = Math.floor((x * this.width) / this.wide), row = Math.floor((y * this.height) / this.high);
    if (column < 0 || row < 0 || column >= this.columns || row >= this.rows) return null;
    return this.prefix + row * this.columns + column;
  }

  centre(token) {
    const { x, y, w, h } = this.place(token);
    return [(x + w / 2) / this.width, (y + h / 2) / this.height];
  }

  name(token) {
    if (token < this.prefix) return token === 0 && this.hasClassToken ? "the class token" : `extra token ${token + 1}`;
    const index = token - this.prefix;
    return `row ${Math.floor(index / this.columns) + 1}, column ${(index % this.columns) + 1}`;
  }

  draw(context, token, to) {
    const from = this.place(token);
    context.imageSmoothingEnabled = !this.picture.isCoarse;
    context.drawImage(this.picture.image, from.x, from.y, from.w, from.h, to.x, to.y, to.w, to.h);
  }
}

// Grey and soft, so that colour can mean attention alone.
function pale(image, width, height) {
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height), data = pixels.data;
  for (let at = 0; at < data.length; at += 4) {
    const grey = 0.3 * data[at] + 0.59 * data[at + 1] + 0.11 * data[at + 2];
    for (let each = at; each < at + 3; each++) data[each] = 24 + 0.78 * (0.8 * grey + 0.2 * data[each]);
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// How strongly attention is coloured: from 0 to the most of any patch, but to three times an even spread at least. So
// what is nearly even looks nearly even.
export function scaleOf(looks, prefix, even) {
  return { even, top: Math.max(3 * even, ...looks.subarray(prefix)) };
}

export const strength = (value, { top }) => Math.min(1, value / top);

// A canvas as sharp as the screen: sets its size, and returns a context that counts in CSS pixels.
export function sharp(canvas, width, height, ratio = Math.min(devicePixelRatio, 2)) {
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(w / width, 0, 0, h / height, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Drawing sets the height, which must not count as a change of its own.
export function onNewWidth(canvas, draw) {
  let known = 0;
  new ResizeObserver(() => {
    if (canvas.clientWidth === known) return;
    known = canvas.clientWidth;
    requestAnimationFrame(draw);
  }).observe(canvas);
}

// Dark with a light core: seen on any picture.
export function ring(context, { x, y, w, h }) {
  for (const [colour, thick] of [["rgb(6 60 70)", 5], ["#fff", 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(x + 1.5, y + 1.5, w - 3, h - 3);
  }
}
