// The conversation: questions, answers as they come, one at a time.

import { Answer } from "./answer.js";
import { AnswerView } from "./answer_view.js";
import { follow, record } from "./asking.js";
import { get, make } from "./dom.js";
import * as settings from "./settings.js";
import { slower } from "./tape.js";

const MARGIN = 12; // pixels between an answer and the composer

export class Chat {
  /** page: {api, async card(), openRounds(answer, index), announce(text)}. */
  constructor(page) {
    this._page = page;
    this._messages = [];
    this._running = null; // an AbortController
    settings.fillMethods(get("method"), "");
    get("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(get("question").value);
    });
    get("question").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.ask(get("question").value);
    });
    get("stop").addEventListener("click", () => this.stop());
    get("clear").addEventListener("click", () => this._clear());
    for (const example of document.querySelectorAll("#examples button")) {
      example.addEventListener("click", () => this.ask(example.dataset.question));
    }
  }

  stop() {
    this._running?.abort();
  }

  async ask(question) {
    const fields = settings.fields();
    if (this._running || !question.trim() || fields === null) return;
    this._run(true);
    const card = await this._page.card();
    if (card) await this._answer(question, fields, card);
    this._run(false);
  }

  async _answer(question, fields, card) {
    const answer = new Answer(question, settings.label(fields, card));
    const view = this._show(answer);
    get("question").value = "";
    this._page.announce("The answer is being written.");
    const mine = { role: "user", content: question };
    const earlier = this._messages; // another list, once a new conversation has begun
    const messages = settings.remembers() ? [...earlier, mine] : [mine];
    const { signal } = this._running;
    const tape = record(this._page.api, { messages, ...fields }, signal);
    const pace = slower(settings.slowness(), await tape.first);
    await follow(tape, answer, { pace, signal }, view.update);
    if (answer.text && !answer.error) earlier.push(mine, { role: "assistant", content: answer.text });
    this._page.announce(answer.error ?? `Answer: ${answer.text}`);
  }

  _show(answer) {
    const view = new AnswerView(answer, this._page.openRounds, () => keepInView(view.node));
    const tag = make("p", "tag", answer.label);
    get("messages").append(make("article", "turn", make("p", "asked", answer.question), tag, view.node));
    get("empty").hidden = true;
    get("clear").hidden = false;
    view.node.scrollIntoView({ block: "nearest" }); // from the settings, which are below on a phone
    keepInView(view.node, Infinity);
    return view;
  }

  _run(running) {
    this._running = running ? new AbortController() : null;
    const focused = document.activeElement;
    get("send").hidden = running;
    get("stop").hidden = !running;
    const lost = focused === document.body && matchMedia("(hover: hover)").matches; // a phone's keyboard stays away
    if (focused === get("send") || focused === get("stop") || lost) get("question").focus();
  }

  _clear() {
    this.stop();
    this._messages = [];
    get("messages").replaceChildren();
    get("empty").hidden = false;
    get("clear").hidden = true;
    get("question").focus();
  }
}

/** Scrolls to the end of a node that runs below the composer, for a reader who is not further than `reach` away. */
function keepInView(node, reach = 200) {
  const hidden = node.getBoundingClientRect().bottom - get("composer").getBoundingClientRect().top;
  if (hidden > 0 && hidden < reach) window.scrollBy(0, hidden + MARGIN);
}
