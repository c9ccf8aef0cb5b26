// The answer in words and bars. Names come from data: they are set as text, never as markup.

const MOST_NAMES = 8; // of a prediction set that are written out

export function percent(share) {
  if (share > 0 && share < 0.001) return "under\u00a00.1\u00a0%";
  if (share > 0.999 && share < 1) return "over\u00a099.9\u00a0%"; // a model is never quite sure
  const value = 100 * share;
  return `${value >= 10 && value < 99 ? Math.round(value) : Number(value.toFixed(1))}\u00a0%`;
}

export function element(kind, name, text = "") {
  const made = document.createElement(kind);
  made.className = name;
  made.textContent = text;
  return made;
}

// result: {top: [{label, probability}], set}; least: below which the model is not sure. Answers what can be read aloud.
export function showAnswer(at, result, least, coverage) {
  const [best] = result.top, isSure = best.probability >= least;
  at("verdict").textContent = isSure ? best.label : "Not sure";
  at("verdict").classList.toggle("unsure", !isSure);
  at("guess").hidden = isSure;
  at("guess").textContent = isSure ? "" : `Its best guess, ${best.label}, is below the ${percent(least)} you ask for.`;
  at("bars").replaceChildren(...result.top.map(bar));
  at("set").hidden = !result.set;
  at("promise").hidden = !result.set;
  if (result.set) {
    at("set").replaceChildren(...setWords(result.set, coverage));
    const often = `${Math.round(100 * coverage)} of 100`;
    at("promise").textContent = `Such lists hold the right class for ${often} pictures like those it was tried on.`;
  }
  const guess = `${best.label}, ${percent(best.probability)}`;
  at("brief").textContent = isSure ? guess : "Not sure";
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

function setWords(names, coverage) {
  const share = `${Math.round(100 * coverage)}\u00a0%: `;
  if (names.length === 0) return [`${share}none is likely enough. The picture may be unlike all the model has learnt.`];
  const shown = names.slice(0, MOST_NAMES), words = [share, names.length === 1 ? "" : "one of "];
  shown.forEach((name, place) => words.push(...(place ? [", "] : []), element("b", "", name)));
  if (names.length > shown.length) words.push(` and ${names.length - shown.length} more`);
  return [...words, "."];
}
