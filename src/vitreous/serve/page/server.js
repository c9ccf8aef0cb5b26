// The questions the page asks. Every failure becomes a Problem: one line for a person.

const MAX_TRIES = 20;

export class Problem extends Error {
  constructor(line, status = 0, waitS = null) {
    super(line);
    this.status = status;
    this.waitS = waitS; // after which asking again makes sense
  }
}

export class Server {
  // say(line): what is being waited for; null when the wait is over
  constructor(say) {
    this.say = say;
    this.token = sessionStorage.getItem("token");
  }

  useToken(token) {
    this.token = token;
    sessionStorage.setItem("token", token);
  }

  async models() {
    return (await this.#json("v1/model")).models;
  }

  async examples() {
    return (await this.#json("v1/examples")).examples;
  }

  async predict(model, picture, coverage, signal) {
    const options = { model, top: 5, ...(coverage === null ? {} : { coverage }) };
    const { results } = await this.#json("v1/predict", options, picture, signal);
    return { ...results[0], coverage };
  }

  async segment(model, picture, signal) {
    return (await this.#json("v1/segment", { model }, picture, signal)).results[0];
  }

  async detect(model, picture, score, signal) {
    return (await this.#json("v1/detect", { model, score, looks: true }, picture, signal)).results[0];
  }

  // asTyped: names as they are, in place of sentences with them
  async name(model, picture, names, asTyped, signal) {
    const options = [["model", model], ["places", true], ...names.map((name) => ["classes", quoted(name)])];
    if (asTyped) options.push(["templates", "none"]);
    return (await this.#json("v1/zero-shot", options, picture, signal)).results[0];
  }

  async searchWords(model, text) {
    return this.#json("v1/search", { model }, JSON.stringify({ texts: [text] }), null);
  }

  async searchLike(model, picture) {
    return this.#json("v1/search", { model }, picture, null);
  }

  async attention(model, picture, signal) {
    return (await this.#ask("v1/attention", { model }, picture, signal)).arrayBuffer();
  }

  async neighbours(model, picture, signal) {
    return this.#json("v1/neighbours", { model, num: 6 }, picture, signal);
  }

  async #json(...words) {
    return (await this.#ask(...words)).json();
  }

  // Waits and asks again where the server says that this will help.
  async #ask(path, options = {}, picture = null, signal = null) {
    for (let tries = 1; ; tries++) {
      try {
        return await this.#once(path, options, picture, signal);
      } catch (problem) {
        if (!(problem instanceof Problem) || problem.waitS === null || tries === MAX_TRIES) throw problem;
        await this.#wait(problem, signal);
      }
    }
  }

  // body: a picture, or JSON as text
  async #once(path, options, body, signal) {
    const headers = this.token === null ? {} : { authorization: `Bearer ${this.token}` };
    if (body !== null) headers["content-type"] = typeof body === "string" ? "application/json" : "application/octet-stream";
    let answer;
    try {
      answer = await fetch(`${path}?${new URLSearchParams(options)}`, {
        method: body === null ? "GET" : "POST", headers, body, signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The server does not answer. Is it still running? Nothing is lost: start it, then try again.");
    }
    if (answer.ok) return answer;
    const reason = await answer.json().then((body) => String(body.error), () => `status ${answer.status}`);
    const canWait = answer.status === 429 || answer.status === 503;
    throw new Problem(reason, answer.status, canWait ? Number(answer.headers.get("retry-after") ?? 2) : null);
  }

  async #wait(problem, signal) {
    const what = problem.status === 429 ? "Many pictures are waiting" : "The model is starting";
    try {
      for (let left = Math.min(problem.waitS, 60); left > 0; left--) {
        this.say(`${what}: trying again in ${left} s.`);
        await new Promise((resolve) => setTimeout(resolve, 1000));
        signal?.throwIfAborted();
      }
    } finally {
      this.say(null);
    }
  }
}

// The service reads a list, in which a name that contains quotes has to be quoted, with its own quotes doubled.
const quoted = (name) => (name.includes('"') ? `"${name.replaceAll('"', '""')}"` : name);
