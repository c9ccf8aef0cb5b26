// Everything about one model: its prediction, its attention, its sentence, its neighbours.

import { element, offerCoverages, percent, showPrediction } from "./prediction.js";
import { Boxes } from "./boxes.js";
import { showGiven } from "./given.js";
import { Names } from "./names.js";
import { Patches, Picture, scaleOf } from "./patches.js";
import { Places } from "./places.js";
import { Search } from "./search.js";
import { Segments } from "./segments.js";
import { Sentence } from "./sentence.js";
import { Stage } from "./stage.js";

const NEARLY_EVEN = 1.5; // times an even share: what is below says little
const MOST_WORDS = 1024; // of a sentence: more could not be told apart

export class Panel {
  // onLook(place or null, isKept): this panel's user looks at a place (fractions of width and height)
  // onCoverage(this): another list of classes is wanted
  // words: how names and searches are asked about (see Names, Search)
  constructor(model, { onLook, onCoverage, speak, words }) {
    this.model = model;
    this.picture = null; // that the prediction is about
    this.speak = speak;
    this.onLook = onLook;
    this.onCoverage = onCoverage;
    this.root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    this.at = (name) => this.root.querySelector(`[data-at="${name}"]`);
    this.coverage = model.coverages.includes(0.9) ? 0.9 : model.coverages[0] ?? null;
    this.result = this.attention = this.patches = null;
    this.kept = this.passing = null; // tokens: chosen, and pointed at
    this.stage = new Stage(this.at("stage"), (token, how) => this.#choose(token, how));
    this.sentence = new Sentence(this.at("sentence"), this.at("flight"), (token, how) => this.#choose(token, how));
    this.segments = this.can("segment") ? new Segments(this.at, speak) : null;
    this.boxes = this.can("detect") ? new Boxes(this.at, speak) : null;
    this.names = this.can("zero-shot") ? new Names(this.at, model, { ...words(this), speak }) : null;
    this.search = this.can("search") ? new Search(this.at, words(this)) : null;
    this.places = model.tokens ? new Places(this.at("map"), this.at("map-is"), model) : null;
    this.#name();
    this.#listen();
  }

  #name() {
    const { model } = this;
    this.at("name").textContent = model.name;
    this.at("facts").textContent = [model.what, ...size(model.parameters)].join("; ");
    this.root.setAttribute("aria-label", `The model ${model.name}`);
    for (const radio of this.root.querySelectorAll("[type=radio]")) radio.name = `attention of ${model.name}`;
    this.at("prediction").hidden = !this.can("predict");
    this.at("segments").hidden = !this.can("segment");
    this.at("boxes").hidden = !this.can("detect");
    if (!model.calibrated) this.at("score-means").textContent = "The score is as trained: nobody has checked how often it is right.";
    for (const name of ["second", "words", "places"]) this.at(name).hidden = !this.can("attention");
    this.at("near").hidden = !this.can("embed") || this.can("search"); // it has its own pictures to look among
    this.at("named").hidden = !this.can("zero-shot");
    this.at("searching").hidden = !this.can("search");
    for (const name of ["wanted", "go"]) this.at(name).hidden = !this.can("zero-shot");
    this.at("how").hidden = this.can("attention");
    if (model.closed) this.at("how").textContent = `This model predicts, but cannot be looked into: ${model.closed}.`;
    this.root.classList.toggle("closed", !this.can("attention"));
    if (model.coverages.length) offerCoverages(this.at("coverage"), model.coverages);
  }

  #listen() {
    for (const name of ["layer", "head", "shown"]) this.at(name).addEventListener("input", () => this.#draw());
    for (const radio of this.root.querySelectorAll("[type=radio]")) radio.addEventListener("input", () => this.#draw());
    this.at("least").addEventListener("input", () => {
      this.isAsked = true;
      this.#sayAnswer();
    });
    this.at("coverage")?.addEventListener("input", (event) => {
      this.coverage = Number(event.target.value);
      this.onCoverage(this);
    });
    this.at("replay").addEventListener("click", () => this.sentence.fly(this.at("stage")));
  }

  can(what) {
    return this.model.can.includes(what);
  }

  // ---- what comes from the server, in this order

  showPrediction(picture, result) {
    this.root.hidden = false;
    this.picture = picture;
    for (const part of [this.root, this.at("near")]) part.classList.add("stale"); // still about the picture before
    this.result = result;
    this.attention = null;
    if (result) this.speak(this.#sayAnswer());
  }

  // The same prediction with another list.
  changeAnswer(result) {
    this.result = result;
    this.#sayAnswer();
  }

  // picture: {address, width, height}; null for a format that only the server can read
  showGiven(picture) {
    showGiven(this.at, picture, this.model.preprocessing);
    const isAll = !["attention", "segment", "detect"].some((what) => this.can(what));
    if (isAll) this.root.classList.remove("stale"); // there is no more to come
  }

  // mask: the classes as colours; picture: what they are about, or null
  showSegments(result, mask, picture) {
    this.segments.show(result, mask, picture);
    if (!this.can("attention")) this.root.classList.remove("stale");
  }

  // picture: what the boxes are about, or null
  showBoxes(result, picture) {
    this.boxes.show(result, picture);
    if (!this.can("attention")) this.root.classList.remove("stale");
  }

  // seen: what the model sees of the picture
  showAttention(attention, seen) {
    const isFirst = this.patches === null;
    this.root.classList.remove("stale");
    this.attention = attention;
    this.seen = new Picture(seen, attention.picture_px);
    this.patches = null;
    this.kept = this.passing = null;
    if (isFirst) this.#setSliders();
    this.#draw();
    this.sentence.fly(this.at("stage"));
  }

  showNeighbours({ neighbours, indexed, total }) {
    this.at("near").classList.remove("stale");
    this.at("neighbours").replaceChildren(...neighbours.map(neighbour));
    this.at("near-is").textContent = indexed < total
      ? `Found among the first ${indexed} of ${total} training pictures; the model is still reading the others.`
      : `The most alike to the model, among ${total} training pictures it has seen.`;
  }

  lackNeighbours(why) {
    if (this.at("near").classList.contains("stale")) this.at("neighbours").replaceChildren();
    this.at("near").classList.remove("stale");
    this.at("near-is").textContent = `${capital(why).replace(/\.$/, "")}.`;
  }

  #howToRead({ seen }) {
    const { hasClassToken, prefix, count } = this.patches;
    const isAlike = this.patches.isLike(new Patches(seen, this.seen));
    const where = isAlike ? "It looks at the underlined ones." : "It looks at larger squares than these.";
    const lines = [`Each square is a word: ${count} of them, read line by line. ${where}`];
    if (hasClassToken) lines.push("The first word, “?”, is no square but the class token, which gathers the prediction.");
    if (prefix > (hasClassToken ? 1 : 0)) lines.push("Words marked “+” are no squares: room for the model's notes.");
    return lines.join(" ");
  }

  // ---- looking

  #setSliders() {
    const { layers, no_rollout } = this.attention;
    this.at("layer").max = layers.length;
    this.at("layer").value = layers.length;
    this.at("head").max = Math.max(...layers.map(({ heads }) => heads));
    this.at("head").value = 0;
    this.root.querySelector("[value=rollout]").disabled = no_rollout !== null;
    this.at("no-rollout").hidden = no_rollout === null;
    this.at("no-rollout").textContent = `There is no rollout of this model: ${no_rollout}.`;
  }

  // The squares of the layer that is looked at, which may be finer than those of another one.
  #cut(layer) {
    const patches = new Patches(layer.looking, this.seen);
    if (this.patches?.isLike(patches)) return;
    if (this.patches) [this.kept, this.passing] = [this.kept, this.passing].map((token) => this.#moved(token, patches));
    this.patches = patches;
    this.stage.showPatches(patches);
    const isSentence = patches.count <= MOST_WORDS;
    for (const name of ["sentence", "replay"]) this.at(name).hidden = !isSentence;
    this.sentence.show(isSentence ? patches : null);
    this.at("read").textContent = isSentence ? this.#howToRead(layer) : `${patches.count} squares are too many for a sentence.`;
  }

  // The token at the same place among other squares.
  #moved(token, patches) {
    if (token === null || token < this.patches.prefix) return null;
    return patches.at(...this.patches.centre(token));
  }

  #choose(token, how) {
    if (!this.attention) return;
    if (how === "pass" && token === this.passing) return;
    if (how === "pass") this.passing = token;
    else [this.kept, this.passing] = [how === "stay" && token === this.kept ? null : token, null];
    this.#draw();
    if (how === "keys") this.speak(this.at("readout").textContent);
    const shown = this.passing ?? this.kept;
    this.onLook(shown !== null && shown >= this.patches.prefix ? this.patches.centre(shown) : null, how !== "pass");
  }

  // As the user of another panel does.
  lookAt(place, isKept) {
    if (!this.attention) return;
    this.passing = place && this.patches.at(...place);
    if (isKept) [this.kept, this.passing] = [this.passing, null];
    this.#draw();
  }

  get choice() {
    const head = Number(this.at("head").value);
    const rollout = this.root.querySelector("[type=radio]:checked").value === "rollout";
    const layer = this.at("layer").value - 1, { heads } = this.attention.layers[layer]; // later stages have more
    return { rollout, layer, head: head === 0 ? null : Math.min(head, heads) - 1 };
  }

  #draw() {
    if (!this.attention) return;
    const { attention, choice } = this, layer = attention.at(choice);
    this.#cut(layer);
    const token = this.passing ?? this.kept ?? layer.gatherer, seen = new Patches(layer.seen, this.seen);
    const looks = layer.looks(token, choice.rollout ? null : choice.head);
    const shown = this.at("shown").checked ? looks : null;
    const colours = scaleOf(looks, seen.prefix, layer.even(token));
    this.#showChoice(choice, layer);
    this.at("readout").textContent = this.#inWords(token, looks, choice.rollout, layer, seen);
    this.#showScale(colours, shown !== null);
    this.stage.look(token, shown, { colours, seen, window: layer.window(token) });
    this.sentence.look(token, this.patches.isLike(seen) ? shown : null, colours);
    const isPatch = token !== null && token >= this.patches.prefix;
    this.places.look(isPatch ? this.patches.centre(token) : null, isPatch ? this.patches.name(token) : "");
  }

  #showChoice({ rollout, layer: number, head }, { heads }) {
    this.at("layer").disabled = rollout;
    this.at("head").disabled = rollout || heads === 1;
    this.at("layer-is").textContent = `${number + 1} of ${this.attention.layers.length}`;
    const text = head === null ? "mean of heads" : `${head + 1} of ${heads}`;
    this.at("head-is").textContent = text;
    this.at("head").setAttribute("aria-valuetext", text);
  }

  #showScale({ even, top }, isShown) {
    const scale = this.at("scale"), say = (name, text) => (scale.querySelector(`.${name}`).textContent = text);
    scale.hidden = !isShown;
    scale.style.setProperty("--even", even / top);
    scale.setAttribute("aria-label", `Colours from 0 to ${percent(top)}; evenly spread it would be ${percent(even)}`);
    say("even", `even: ${percent(even)}`);
    say("most", percent(top));
    say("none", even / top < 0.12 ? "" : "0"); // where there is room for it
  }

  #inWords(token, looks, rollout, layer, seen) {
    const most = looks.indexOf(Math.max(...looks)), even = layer.even(token), isAlike = this.patches.isLike(seen);
    const where = isAlike && most === token ? "itself" : `${isAlike ? "" : "the larger square in "}${seen.name(most)}`;
    const inStage = layer.name.startsWith("stage") ? `In ${layerInWords(layer)}, ` : "";
    const which = rollout ? "Through all layers, " : inStage;
    const among = layer.grouped && token !== null ? " in its window" : "";
    const how = looks[most] < NEARLY_EVEN * even ? `almost evenly everywhere${among}, most` : "most";
    const shares = `${percent(looks[most])}; evenly spread${among} it would be ${percent(even)}`;
    return capital(`${which}${this.#who(token, layer)} ${how} at ${where} (${shares}).`);
  }

  #who(token, layer) {
    if (token === null) return "all squares together look";
    if (token >= this.patches.prefix) return `the square in ${this.patches.name(token)} looks`;
    const role = token === layer.gatherer ? ", which gathers the prediction," : "";
    return `${this.patches.name(token)}${role} looks`;
  }

  #sayAnswer() {
    // Each of several labels has a threshold of its own: no other holds until the user asks for one.
    if (this.result?.labels && !this.isAsked) this.at("least").value = 0;
    const least = this.at("least").value / 100;
    this.at("least-is").textContent = `${this.at("least").value} %`;
    return this.result && showPrediction(this.at, this.result, least);
  }
}

function neighbour({ label, similarity, picture }) {
  const row = document.createElement("li"), image = new Image(), name = element("span", "", label);
  image.src = picture;
  image.alt = "";
  name.title = label;
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= 64));
  row.append(image, name, element("span", "share", `${Math.round(100 * similarity)} % alike`));
  return row;
}

const layerInWords = ({ name, grouped }) => (grouped ? `${name} (${grouped})` : name);
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const size = (count) => (count ? [`${inMillions(count)} parameters`] : []);
const inMillions = (count) => (count < 1e5 ? count.toLocaleString("en") : `${(count / 1e6).toFixed(count < 1e7 ? 2 : 0)} M`);
