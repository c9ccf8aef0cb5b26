// Pictures of an index: those that are like some words, or like the picture that is shown.

import { element } from "./prediction.js";

export class Search {
  // byWords(text), byPicture(): what the server finds
  constructor(at, { byWords, byPicture, complain, calm }) {
    Object.assign(this, { at, byPicture, complain, number: 0 });
    at("search").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = at("wanted").value.trim();
      calm();
      if (text) this.#find(() => byWords(text), `“${text}”`);
    });
    at("alike").addEventListener("click", () => {
      calm();
      this.like();
    });
  }

  // The picture that is shown now.
  like() {
    return this.#find(this.byPicture, "your picture");
  }

  async #find(ask, what) {
    const number = ++this.number;
    this.at("found").classList.add("stale");
    try {
      const { results, total } = await ask();
      if (number !== this.number) return; // something else was asked since
      this.at("found").replaceChildren(...results.map(hit));
      this.at("found-is").textContent = `The most like ${what}, of ${total.toLocaleString("en")} pictures.`;
    } catch (error) {
      this.complain(error, () => this.#find(ask, what));
    }
    if (number === this.number) this.at("found").classList.remove("stale");
  }
}

function hit({ name, score, picture }) {
  const row = document.createElement("li"), text = element("span", "", name);
  text.title = name;
  if (picture) {
    const image = new Image();
    image.src = picture;
    image.alt = "";
    image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= 64));
    row.append(image);
  } else row.append(element("span", "gone", "no preview"));
  row.append(text, element("span", "share", score.toFixed(3)));
  return row;
}
