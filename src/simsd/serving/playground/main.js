// The page: its tabs, the key, and what the views share.

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { get } from "./dom.js";
import { Race } from "./race.js";
import { Rounds } from "./rounds.js";
import * as settings from "./settings.js";

const KEY = "simsd-api-key"; // in the tab's own storage, which ends with it
const TABS = ["chat", "race", "rounds"];

function openTab(name) {
  document.body.dataset.tab = name; // the style leaves out the settings that do not belong there
  for (const tab of TABS) {
    const chosen = tab === name;
    get(`panel-${tab}`).hidden = !chosen;
    get(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
    get(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
  }
}

function setUpTabs() {
  for (const [index, name] of TABS.entries()) {
    get(`tab-${name}`).addEventListener("click", () => openTab(name));
    get(`tab-${name}`).addEventListener("keydown", (event) => {
      const last = TABS.length - 1;
      const to = { ArrowLeft: index || last + 1, ArrowRight: index + 2, Home: 1, End: last + 1 }[event.key];
      if (!to) return;
      event.preventDefault();
      const next = TABS[(to - 1) % TABS.length];
      openTab(next);
      get(`tab-${next}`).focus();
    });
  }
}

/** Asks for the key in a dialog; the same answer for all who ask while it is open. */
function keyDialog() {
  const dialog = get("key-dialog");
  let open = null;
  get("key-cancel").addEventListener("click", () => dialog.close(""));
  return (reason) => {
    open ??= new Promise((resolve) => {
      get("key-reason").textContent = reason;
      dialog.returnValue = "";
      dialog.showModal();
      const closed = () => {
        open = null;
        const key = dialog.returnValue === "use" ? get("key").value.trim() : "";
        get("key").value = "";
        if (key) sessionStorage.setItem(KEY, key);
        resolve(key || null);
      };
      dialog.addEventListener("close", closed, { once: true });
    });
    return open;
  };
}

function start() {
  const api = new Api(keyDialog(), sessionStorage.getItem(KEY) ?? "");
  const rounds = new Rounds();
  let card = null;
  const page = {
    api,
    card: async () => card ?? load(),
    announce: (text) => (get("announcer").textContent = text),
    openRounds(answer, index) {
      openTab("rounds");
      rounds.show(answer, index);
      get("round").focus();
    },
  };
  const views = [new Chat(page), new Race(page)];

  /** The model's card; null, and said why, where it cannot be had. */
  async function load() {
    get("trouble").hidden = true;
    try {
      card = await api.model();
      settings.setUp(card);
    } catch (error) {
      get("trouble-text").textContent = error.message;
      get("trouble").hidden = false;
    }
    return card;
  }

  setUpTabs();
  get("retry").addEventListener("click", load);
  get("settings").open = matchMedia("(min-width: 60rem)").matches;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !get("key-dialog").open) for (const view of views) view.stop();
  });
  load();
}

start();
