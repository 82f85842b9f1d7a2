// Two ways to decode the same question, side by side.

import { Answer } from "./answer.js";
import { AnswerView } from "./answer_view.js";
import { follow, record } from "./asking.js";
import { decimal, get, make } from "./dom.js";
import * as settings from "./settings.js";
import { slower } from "./tape.js";

const SIDES = ["left", "right"];

export class Race {
  /** page: {api, async card(), openRounds(answer, index), announce(text)}. */
  constructor(page) {
    this._page = page;
    this._running = null; // an AbortController
    settings.fillMethods(get("method-left"), null);
    settings.fillMethods(get("method-right"), null);
    get("method-left").value = "none";
    get("method-right").value = "exact";
    get("race-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start(get("race-question").value);
    });
    get("race-stop").addEventListener("click", () => this.stop());
    for (const side of SIDES) {
      get(`method-${side}`).addEventListener("change", () => this._forget());
      get(`window-${side}`).addEventListener("input", () => this._forget());
    }
  }

  stop() {
    this._running?.abort();
  }

  /** What was decoded in another way than the controls now say must not stand beside them. */
  _forget() {
    if (this._running) return;
    get("result").replaceChildren();
    for (const side of SIDES) get(`lane-${side}`).replaceChildren(make("p", "hint", "Ready."));
  }

  async start(question) {
    const wanted = SIDES.map((side) => settings.fields(get(`method-${side}`), get(`window-${side}`)));
    if (this._running || !question.trim() || wanted.includes(null)) return;
    this._run(true);
    const card = await this._page.card();
    if (card) await this._race(question, withOneSeed(wanted), card);
    this._run(false);
  }

  async _race(question, wanted, card) {
    const { signal } = this._running;
    const [left, right] = await this._answers(question, wanted, card, signal);
    if (!signal.aborted && !left.error && !right.error) {
      const said = verdict(left, right, get("start").value === "together");
      get("result").replaceChildren(...said.map((text) => make("p", "", text)));
      this._page.announce(said.join(" "));
    }
  }

  /** The two answers, when both are there. */
  async _answers(question, wanted, card, signal) {
    const answers = wanted.map((fields) => new Answer(question, settings.label(fields, card)));
    const views = answers.map((answer) => new AnswerView(answer, this._page.openRounds));
    SIDES.forEach((side, index) => get(`lane-${side}`).replaceChildren(views[index].node));
    const bodies = wanted.map((fields) => ({ messages: [{ role: "user", content: question }], ...fields }));
    const together = get("start").value === "together";
    const tapes = [];
    for (const body of bodies) {
      tapes.push(record(this._page.api, body, signal));
      if (!together) await tapes.at(-1).whole.catch(() => {}); // `follow` tells why
    }
    const firsts = tapes.map((tape) => tape.first);
    const from = together ? await Promise.race(firsts) : Math.min(...(await Promise.all(firsts)));
    const how = { pace: slower(settings.slowness(), from), since: together ? undefined : performance.now(), signal };
    await Promise.all(tapes.map((tape, index) => follow(tape, answers[index], how, views[index].update)));
    return answers;
  }

  _run(running) {
    this._running = running ? new AbortController() : null;
    get("race-start").hidden = running;
    get("race-stop").hidden = !running;
    if (running) get("result").replaceChildren();
    get(running ? "race-stop" : "race-start").focus();
  }
}

/** Where tokens are drawn, both sides draw with one seed. */
function withOneSeed(wanted) {
  const seed = wanted[0].seed ?? Math.floor(Math.random() * 2 ** 31);
  return wanted.map((fields) => ({ ...fields, seed }));
}

/** Who was first, and whether the texts are the same, in sentences. */
function verdict(left, right, together) {
  const [first, second] = left.figures.seconds <= right.figures.seconds ? [left, right] : [right, left];
  const [one, other] = [first.figures, second.figures];
  const name = (answer) => (left.label === right.label ? (answer === left ? "The left" : "The right") : answer.label);
  const same = left.text === right.text;
  const texts = same ? "Both wrote the same text." : `The texts differ ${place(left.text, right.text)}.`;
  const said = [
    `${name(first)} was first: ${decimal(one.seconds, 2)} s against ${decimal(other.seconds, 2)} s, ` +
      `${one.forwards} forwards against ${other.forwards}. ${texts}`,
  ];
  if (together) {
    said.push(
      `Side by side they take turns on one engine, a round each. Their own rounds took ` +
        `${decimal(one.ownSeconds, 2)} s and ${decimal(other.ownSeconds, 2)} s.`,
    );
  }
  return said;
}

function place(one, other) {
  const common = Math.min(one.length, other.length);
  let at = 0;
  while (at < common && one[at] === other[at]) at += 1;
  return `from character ${at + 1} on`;
}
