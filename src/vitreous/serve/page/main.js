// The page: pictures come in, all models are asked, and what they say is shown. The prediction first, the rest after it.

import { Attention } from "./attention.js";
import { openIntake, showExamples } from "./intake.js";
import { Panel } from "./panel.js";
import { Problem, Server } from "./server.js";

const find = (id) => document.getElementById(id);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const EXAMPLE_TRIES = 20, ABOUT_TRIES = 20;
const NEIGHBOURS_AGAIN_MS = [2000, 4000, 8000, 15000]; // while the model is still reading its training pictures
const STARTING_MS = 500; // after which it is said that the model is starting
const LEAST_SCORE = 0.05; // of objects that the page may show

const server = new Server(say);
let panels = [];
let early = null; // a picture that came before the models were known
let under = null; // the AbortController of the picture being read
let last = null; // the picture that all panels show
let retry = null; // what "Try again" does

function say(line) {
  find("busy").hidden = line === null;
  find("busy").textContent = line ?? "";
}

// ---- problems

// again: what "Try again" does, or null
function complain(error, again = null) {
  if (error.name === "AbortError") return;
  find("token").hidden = error.status !== 401;
  find("problem").hidden = error.status === 401;
  const line = error instanceof Problem ? error.message : `Something went wrong on this page: ${error.message}`;
  find("problem-text").textContent = line;
  retry = again;
  find("again").hidden = again === null || isHopeless(error);
}

// Whether the same question gets the same answer.
const isHopeless = ({ status }) => status >= 400 && status < 500 && ![401, 408, 429].includes(status);

function calm() {
  find("problem").hidden = true;
}

find("dismiss").addEventListener("click", calm);
find("again").addEventListener("click", () => {
  calm();
  retry();
});
find("token").addEventListener("submit", (event) => {
  event.preventDefault();
  server.useToken(event.target.querySelector("input").value.trim());
  find("token").hidden = true;
  retry();
});

// ---- a picture

async function take(picture) {
  if (panels.length === 0) return (early = picture);
  under?.abort();
  under = new AbortController();
  const { signal } = under;
  calm();
  document.body.classList.add("working");
  try {
    const parts = panels.map((panel) => read(panel, picture, signal));
    parts.forEach((part) => part.then(() => mark(picture.button), () => {}));
    await Promise.all(parts);
    release(picture);
  } catch (error) {
    const named = isHopeless(error) ? new Problem(`${picture.name}: ${error.message}`, error.status) : error;
    complain(named, () => take(picture));
  } finally {
    if (!signal.aborted) document.body.classList.remove("working");
  }
}

// What is on the page stays there until there is a prediction for the new picture.
async function read(panel, picture, signal) {
  const { name } = panel.model;
  const result = panel.can("predict") ? await server.predict(name, picture.blob, panel.coverage, signal) : null;
  panel.showPrediction(picture, result);
  picture.given ??= opened(URL.createObjectURL(picture.blob)); // the server has found it small enough for that
  const given = picture.given.then(asGiven, () => null).then((found) => signal.aborted || panel.showGiven(found));
  if (panel.can("search")) panel.search.like();
  if (panel.can("zero-shot")) {
    const below = await picture.given.catch(() => null);
    signal.throwIfAborted();
    await panel.names.show(below);
  }
  if (panel.can("segment")) {
    const found = await server.segment(name, picture.blob, signal);
    const [mask, below] = await Promise.all([opened(found.mask), picture.given.catch(() => null)]);
    signal.throwIfAborted();
    panel.showSegments(found, mask, below);
  }
  if (panel.can("detect")) {
    const found = await server.detect(name, picture.blob, LEAST_SCORE, signal), below = await picture.given.catch(() => null);
    signal.throwIfAborted();
    panel.showBoxes(found, below);
  }
  if (panel.can("attention")) {
    const [sent] = await Promise.all([server.attention(name, picture.blob, signal), given]);
    const attention = new Attention(sent), seen = await opened(attention.seen);
    signal.throwIfAborted();
    panel.showAttention(attention, seen);
  }
  if (panel.can("embed") && !panel.can("search")) lookForNeighbours(panel, picture, signal);
}

// The list of classes for another coverage, of the picture that is there.
async function listAgain(panel) {
  try {
    const { name } = panel.model;
    panel.changeAnswer(await server.predict(name, panel.picture.blob, panel.coverage, under.signal));
  } catch (error) {
    panel.changeAnswer(panel.result);
    complain(error, () => listAgain(panel));
  }
}

async function lookForNeighbours(panel, picture, signal) {
  try {
    const why = await whyNoNeighbours(panel.model, signal);
    if (why) return panel.lackNeighbours(why);
    for (let tries = 0; ; tries++) {
      const found = await server.neighbours(panel.model.name, picture.blob, signal);
      panel.showNeighbours(found);
      if (found.indexed >= found.total) return;
      await pause(NEIGHBOURS_AGAIN_MS[tries] ?? NEIGHBOURS_AGAIN_MS.at(-1));
      signal.throwIfAborted();
    }
  } catch (error) {
    if (error.name !== "AbortError") panel.lackNeighbours(error.message);
  }
}

// A model says {total, why}, but null while it starts: then it is asked again. Undefined: this service does not say.
async function whyNoNeighbours(model, signal) {
  for (let tries = 1; model.neighbours === null && tries <= ABOUT_TRIES; tries++) {
    const models = await server.models();
    model.neighbours = models.find(({ name }) => name === model.name).neighbours;
    if (model.neighbours === null) await pause(1000);
    signal.throwIfAborted();
  }
  return model.neighbours?.why;
}

const asGiven = ({ src, naturalWidth, naturalHeight }) => ({ address: src, width: naturalWidth, height: naturalHeight });

async function opened(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

// How a panel asks about words, and about its picture by them.
const words = (panel) => ({
  ask: (names, asTyped, signal) => server.name(panel.model.name, panel.picture.blob, names, asTyped, signal),
  byWords: (text) => server.searchWords(panel.model.name, text),
  byPicture: () => server.searchLike(panel.model.name, panel.picture.blob),
  complain,
  calm,
});

// The picture before is shown no more.
function release(picture) {
  if (last && last !== picture) last.given?.then(({ src }) => URL.revokeObjectURL(src), () => {});
  last = picture;
}

function mark(button) {
  for (const each of find("examples").children) each.setAttribute("aria-current", each === button);
}

// ---- the start

async function start() {
  const starting = setTimeout(() => say("The model is starting."), STARTING_MS);
  try {
    const models = await server.models();
    panels = models.map((model) => new Panel(model, {
      onCoverage: listAgain,
      onLook: (place, isKept) => others(model).forEach((panel) => panel.lookAt(place, isKept)),
      speak: (text) => speak(model.name, text),
      words,
    }));
    find("panels").classList.toggle("two", panels.length > 1);
    find("panels").replaceChildren(...panels.map((panel) => panel.root));
  } catch (error) {
    return complain(error, start);
  } finally {
    clearTimeout(starting);
    say(null);
  }
  if (early) take(early);
  offerExamples().catch((error) => complain(error, start));
}

// Read aloud: one line a model, so that none drowns another.
function speak(name, text) {
  const known = [...find("spoken").children].find((each) => each.dataset.of === name);
  const line = known ?? document.createElement("span");
  line.dataset.of = name;
  line.textContent = panels.length > 1 ? `${name}: ${text}. ` : text;
  if (!known) find("spoken").append(line);
}

const others = (model) => panels.filter((panel) => panel.model !== model);

async function offerExamples() {
  for (let tries = 1; tries <= EXAMPLE_TRIES; tries++) {
    const examples = await server.examples();
    const [first] = showExamples(examples, take);
    for (const { names, search } of panels) if (!search) names?.offer(examples.map(({ label }) => label));
    if (first) {
      if (under === null) first.click(); // something to look at, unless there is already
      return;
    }
    await pause(Math.min(500 * tries, 5000)); // a busy machine may need a minute to find them
  }
}

openIntake(take, complain);
start();
