// The exact shape of an object: COCO's runs of pixels, outside and inside in turn, column after column.

const OPACITY = 0.5, EDGE = [255, 255, 255, 255];

export class Shape {
  // mask: {size: [height, width], counts: text}; box: [x0, y0, x1, y1], the smallest around it
  constructor({ size: [height], counts }, box) {
    const [x0, y0, x1, y1] = box.map(Math.round);
    Object.assign(this, { x0, y0, wide: x1 - x0, high: y1 - y0 });
    this.inside = new Uint8Array(this.wide * this.high);
    let at = 0;
    runsOf(counts).forEach((length, place) => {
      for (let pixel = at; place % 2 && pixel < at + length; pixel++) {
        this.inside[((pixel % height) - y0) * this.wide + Math.floor(pixel / height) - x0] = 1;
      }
      at += length;
    });
  }

  // x, y: in px of the picture
  has(x, y) {
    const column = Math.floor(x) - this.x0, row = Math.floor(y) - this.y0;
    return this.#at(row, column);
  }

  #at(row, column) {
    return row >= 0 && column >= 0 && row < this.high && column < this.wide && this.inside[row * this.wide + column] === 1;
  }

  // Its pixels in a colour, with a line along its edge; made once.
  painted(colour) {
    return this.filled ??= this.#drawn([...colour, 255 * OPACITY]);
  }

  // The line alone, where what lies inside is to be seen.
  outlined() {
    return this.line ??= this.#drawn([0, 0, 0, 0]);
  }

  #drawn(inner) {
    const canvas = new OffscreenCanvas(Math.max(1, this.wide), Math.max(1, this.high));
    const context = canvas.getContext("2d"), pixels = context.createImageData(canvas.width, canvas.height);
    for (let row = 0; row < this.high; row++) {
      for (let column = 0; column < this.wide; column++) {
        if (!this.#at(row, column)) continue;
        const isInner = this.#at(row - 1, column) && this.#at(row + 1, column) && this.#at(row, column - 1) && this.#at(row, column + 1);
        pixels.data.set(isInner ? inner : EDGE, 4 * (row * this.wide + column));
      }
    }
    context.putImageData(pixels, 0, 0);
    return canvas;
  }
}

// Numbers of 5 bits a letter, the lowest first; from the fourth on, what is added to the last but one.
export function runsOf(text) {
  const runs = [];
  for (let at = 0; at < text.length;) {
    let value = 0, shift = 0, letter;
    do {
      letter = text.charCodeAt(at++) - 48;
      value += (letter & 31) * 2 ** shift;
      shift += 5;
    } while (letter & 32);
    if (letter & 16) value -= 2 ** shift; // the sign
    runs.push(value + (runs.length > 2 ? runs.at(-2) : 0));
  }
  return runs;
}
