// What every token looks at, in every layer and head: sent once, looked up here.

export class Attention {
  // Four bytes: the length of the JSON that follows, which says where each array lies behind it.
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    Object.assign(this, JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))));
    const kinds = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };
    const values = {};
    for (const { name, dtype, shape, offset } of this.arrays) {
      const count = shape.reduce((product, size) => product * size, 1);
      values[name] = { shape, values: new kinds[dtype](buffer, 4 + length + offset, count) };
    }
    this.layers = this.layers.map((layer, index) => new Layer(layer, index + 1, values));
    this.rollout = this.no_rollout === null ? new Layer(rolled(this.layers[0]), "rollout", values) : null;
  }

  // choice: {rollout, layer, head}, counted from 0; a head of null is the mean of all.
  at({ rollout, layer }) {
    return rollout && this.rollout ? this.rollout : this.layers[layer];
  }
}

// A rollout is like a layer of one head.
const rolled = (first) => ({ ...first, name: "all layers", heads: 1, grouped: "" });

class Layer {
  constructor(layer, number, values) {
    Object.assign(this, layer); // name, heads, grouped, looking, seen
    const sent = values[number === "rollout" ? "rollout" : `weights_${number}`];
    this.levels = sent.values;
    this.scales = values[number === "rollout" ? "rollout_scale" : `scale_${number}`].values;
    [this.groups, this.rows, this.columns] = sent.shape.length === 2 ? [1, ...sent.shape] : sent.shape.slice(1);
    this.keys = values[`keys_${number}`]?.values ?? null; // the tokens that a group's columns are; null: all, in order
    this.row = this.#rowOf(values[`queries_${number}`]?.values ?? null);
    this.count = tokens(this.seen);
  }

  // Of each token that looks: its row among those of all groups.
  #rowOf(queries) {
    const found = new Int32Array(tokens(this.looking));
    if (queries === null) return found.map((_, token) => token);
    queries.forEach((token, row) => token >= 0 && (found[token] = row));
    return found;
  }

  // The token that gathers the prediction; null where it is made of all patches.
  get gatherer() {
    return this.looking.pool === "class" ? 0 : null;
  }

  // What each token would get, were `token` (null: all patches together) to look evenly at all it can see.
  even(token) {
    return 1 / (token === null ? this.count : this.columns);
  }

  // The patches that a patch can see, where these are but a part of all: a window.
  window(token) {
    if (token === null || this.keys === null) return null;
    const looks = this.looks(token, null); // what is hidden from it has no weight at all
    return [...looks.keys()].filter((key) => key >= this.seen.prefix && looks[key] > 0);
  }

  // How much `token` (null: all patches together) looks at each token. What falls on padding is left out.
  looks(token, head) {
    const found = new Float32Array(this.count);
    if (token !== null) return this.#add(found, token, head, 1);
    const first = this.looking.prefix, share = 1 / (this.row.length - first);
    for (let each = first; each < this.row.length; each++) this.#add(found, each, head, share);
    return found;
  }

  #add(found, token, head, share) {
    const heads = head === null ? [...Array(this.heads).keys()] : [head];
    const keys = this.keys?.subarray(this.columns * Math.floor(this.row[token] / this.rows)) ?? null;
    for (const each of heads) {
      const row = each * this.groups * this.rows + this.row[token], start = row * this.columns;
      const scale = (share * this.scales[row]) / (255 * heads.length);
      for (let column = 0; column < this.columns; column++) {
        const key = keys === null ? column : keys[column];
        if (key >= 0) found[key] += scale * this.levels[start + column];
      }
    }
    return found;
  }
}

const tokens = ({ grid, prefix }) => prefix + grid[0] * grid[1];
