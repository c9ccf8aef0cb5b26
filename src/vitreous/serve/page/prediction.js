// The prediction in words and bars. Names come from data: they are set as text, never as markup.

const MOST_NAMES = 8; // of a prediction set that are written out

export function percent(share) {
  if (share > 0 && share < 0.001) return "under\u00a00.1\u00a0%";
  if (share > 0.999 && share < 1) return "over\u00a099.9\u00a0%"; // a model is never quite sure
  const value = 100 * share;
  const whole = Number.isInteger(value) || (value >= 10 && value < 99);
  return `${value.toFixed(whole ? 0 : 1)}\u00a0%`;
}

export function element(kind, name, text = "") {
  const made = document.createElement(kind);
  made.className = name;
  made.textContent = text;
  return made;
}

// The coverages that a model knows, to choose from; a single one is no choice.
export function offerCoverages(select, coverages) {
  if (coverages.length === 1) return select.replaceWith(often(coverages[0]));
  return select.replaceChildren(...coverages.map((each) => new Option(often(each), each)));
}

const often = (coverage) => `${Number((100 * coverage).toFixed(2))}\u00a0of\u00a0100`;

// result: {top: [{label, probability}], set, coverage}, the set being null where none was asked for; of several labels
// {labels, top}, each with the threshold from which a picture has it. least: below which the model is not sure. Returns
// what can be read aloud.
export function showPrediction(at, result, least) {
  return result.labels ? showLabels(at, result, least) : showClass(at, result, least);
}

// A label is there where it is both as likely as it needs to be and as the user asks for.
function showLabels(at, result, least) {
  const isThere = ({ probability, threshold }) => probability >= Math.max(threshold, least);
  const there = result.top.filter(isThere), names = there.map((each) => each.label);
  at("verdict").textContent = names.join(" + ") || "No label";
  at("verdict").classList.toggle("unsure", there.length === 0);
  const others = result.labels.length - there.length;
  at("guess").hidden = others === 0;
  at("guess").textContent = `${others} more would be given without the limit of ${percent(least)}.`;
  at("bars").replaceChildren(...result.top.map((each) => labelBar(each, isThere(each))));
  at("sets").hidden = true;
  return there.map((each) => `${each.label}, ${percent(each.probability)}`).join("; ") || "No label";
}

function labelBar(each, isThere) {
  const row = bar(each), needed = element("b", "needed");
  row.classList.add(isThere ? "there" : "absent");
  needed.style.setProperty("--needed", each.threshold);
  needed.title = `given from ${percent(each.threshold)} on`;
  row.lastChild.append(needed);
  return row;
}

function showClass(at, result, least) {
  const [best] = result.top, isSure = best.probability >= least;
  at("verdict").textContent = isSure ? best.label : "Not sure";
  at("verdict").classList.toggle("unsure", !isSure);
  at("guess").hidden = isSure;
  at("guess").textContent = isSure ? "" : `Its best guess, ${best.label}, is less likely than ${percent(least)}.`;
  at("bars").replaceChildren(...result.top.map(bar));
  at("sets").hidden = !result.set;
  if (result.set) showSet(at, result);
  const guess = `${best.label}, ${percent(best.probability)}`;
  return isSure ? guess : `Not sure. Best guess: ${guess}`;
}

function bar({ label, probability }) {
  const row = document.createElement("li"), track = element("span", "bar"), filled = document.createElement("i");
  filled.style.setProperty("--share", probability);
  track.append(filled);
  const name = element("span", "name", label);
  name.title = label;
  row.append(name, element("span", "share", percent(probability)), track);
  return row;
}

function showSet(at, { set, coverage }) {
  at("set").replaceChildren(...setWords(set));
  const select = at("coverage");
  if (select) select.value = coverage; // what the list was made for, whatever was asked for since
}

function setWords(names) {
  if (names.length === 0) return ["none is likely enough. The picture may be unlike all the model has learnt."];
  const shown = names.slice(0, MOST_NAMES), words = [names.length === 1 ? "" : "one of "];
  shown.forEach((name, place) => words.push(...(place ? [", "] : []), element("b", "", name)));
  if (names.length > shown.length) words.push(` and ${names.length - shown.length} more`);
  return [...words, "."];
}
