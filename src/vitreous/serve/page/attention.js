// What every token looks at, in every layer and head: sent once, looked up here.

export class Attention {
  // Four bytes: the length of the JSON that follows, which says where each array lies behind it.
  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    Object.assign(this, JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))));
    const kinds = { float32: Float32Array, uint8: Uint8Array };
    this.values = {};
    for (const { name, dtype, shape, offset } of this.arrays) {
      const count = shape.reduce((product, size) => product * size, 1);
      this.values[name] = new kinds[dtype](buffer, 4 + length + offset, count);
    }
  }

  // The token that gathers the answer; null where the answer is made of all patches.
  get gatherer() {
    return this.pool === "class" ? 0 : null;
  }

  // How much `token` (null: all patches together) looks at each token. choice: {rollout, layer, head}, from 0; a head
  // of null is the mean of all.
  looks(token, choice) {
    const found = new Float32Array(this.tokens);
    if (token !== null) return this.#add(found, token, choice, 1);
    const first = this.prefix, share = 1 / (this.tokens - first);
    for (let each = first; each < this.tokens; each++) this.#add(found, each, choice, share);
    return found;
  }

  #add(found, token, { rollout, layer, head }, share) {
    const { weights, weights_scale, rollout: rolled, rollout_scale } = this.values;
    if (rollout) return addRow(found, rolled, rollout_scale, token, share);
    const heads = head === null ? [...Array(this.heads).keys()] : [head];
    for (const each of heads) {
      addRow(found, weights, weights_scale, (layer * this.heads + each) * this.tokens + token, share / heads.length);
    }
    return found;
  }
}

function addRow(found, levels, scales, row, share) {
  const scale = (share * scales[row]) / 255, start = row * found.length;
  for (let index = 0; index < found.length; index++) found[index] += scale * levels[start + index];
  return found;
}
