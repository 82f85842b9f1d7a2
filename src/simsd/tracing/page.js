"use strict";
(() => {
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const rounds = trace.rounds;
  const MASKED = "▢";
  const SIGNS = { known: "", accepted: "✓", corrected: "↻", bonus: "+", rejected: "✗", masked: "" };
  const MEANINGS = {
    accepted: "the draft's token was kept",
    corrected: "the target put its own token where another was drafted",
    bonus: "the target revealed it by itself, in the free last step",
    rejected: "drafted but not kept, still masked",
    known: "known before this round",
  };
  const get = (id) => document.getElementById(id);

  // All text goes through textContent: nothing that a prompt or a token holds can become markup.
  function make(tag, text, className) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  function visible(text) {
    const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");
    return shown.replace(/[\p{C}\u2028\u2029]/gu, (char) => "\\u{" + char.codePointAt(0).toString(16) + "}") || "∅";
  }

  const tokenText = (id, maskId) => (id === maskId ? MASKED : visible(trace.tokens[id] ?? "#" + id));

  // Which round revealed the token at an absolute position, and how.
  const revealed = new Map();
  rounds.forEach((round, index) => {
    round.verdict.forEach((verdict, place) => {
      if (verdict === "accepted" || verdict === "corrected" || verdict === "bonus") {
        revealed.set(round.block_start + place, { index, verdict });
      }
    });
  });

  function showText() {
    get("prompt").textContent = trace.prompt;
    const places = [...revealed.keys()].sort((a, b) => a - b);
    trace.token_ids.forEach((id, i) => {
      // A span, not a button: a token may hold line ends, and only inline text flows around them.
      const token = make("span", (trace.tokens[id] ?? "").replace(/\n/g, "↵\n"), "token");
      const found = revealed.get(places[i]);
      if (found) {
        token.classList.add("t-" + found.verdict);
        token.dataset.round = found.index;
        token.title = `position ${places[i]}, round ${found.index + 1}, ${found.verdict}`;
        token.setAttribute("role", "button");
        token.tabIndex = 0;
        token.addEventListener("click", () => go(found.index));
        token.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            go(found.index);
          }
        });
      }
      get("answer").append(token);
    });
  }

  function showStats() {
    const stats = trace.stats;
    const number = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");
    const tiles = [
      ["tokens", stats.tokens],
      ["rounds", rounds.length],
      ["target forwards", stats.target_forwards],
      ["draft forwards", stats.draft_forwards],
      ["tokens per target forward", number(stats.tokens_per_forward, 2)],
      ["acceptance rate", stats.drafted_tokens ? number(100 * stats.acceptance_rate, 0) + " %" : "no drafts"],
      ["drafted / accepted", `${stats.drafted_tokens} / ${stats.accepted_tokens}`],
      ["tokens per second", number(stats.tokens_per_second, 0)],
      ["ended by", trace.finish_reason],
    ];
    for (const [name, value] of tiles) {
      const tile = make("div");
      tile.append(make("dt", name), make("dd", String(value)));
      get("stats").append(tile);
    }
    for (const [name, value] of Object.entries(trace.options)) {
      const chip = make("li", name.replaceAll("_", " ") + " ");
      chip.append(make("b", String(value)));
      get("options").append(chip);
    }
    for (const [name, meaning] of Object.entries(MEANINGS)) {
      get("legend").append(make("li", `${SIGNS[name]} ${name}: ${meaning}`.trim(), name));
    }
  }

  function headRow(labels) {
    const row = make("tr");
    row.append(make("td", "", "none"), ...labels.map((label) => {
      const cell = make("th", String(label));
      cell.scope = "col";
      return cell;
    }));
    const head = make("thead");
    head.append(row);
    return head;
  }

  function bodyRow(label, cells) {
    const row = make("tr");
    const head = make("th", label);
    head.scope = "row";
    row.append(head, ...cells);
    return row;
  }

  function stateCell(id, maskId, className) {
    return make("td", tokenText(id, maskId), id === maskId ? "mask-token" : className);
  }

  function draftCell(round, place) {
    const id = round.drafted[place];
    const verdict = round.verdict[place];
    if (verdict === "known") return make("td", "", "none");
    const cell = stateCell(id, round.mask_token_id, "");
    if (id !== round.mask_token_id) {
      const lost = verdict === "rejected" || verdict === "corrected";
      cell.replaceChildren(make("span", cell.textContent, lost ? "lost" : ""));
      cell.append(make("span", "step " + round.draft_step[place], "step"));
    }
    return cell;
  }

  function afterCell(round, place) {
    const verdict = round.verdict[place];
    const cell = make("td", `${SIGNS[verdict]} ${tokenText(round.after[place], round.mask_token_id)}`.trim());
    cell.className = verdict === "masked" ? "mask-token" : verdict;
    cell.title = MEANINGS[verdict] ?? "neither drafted nor revealed";
    return cell;
  }

  function showBlocks(round) {
    const size = round.block_length;
    const box = get("blocks");
    box.replaceChildren();
    for (let first = 0; first < round.after.length; first += size) {
      const places = Array.from({ length: size }, (_, i) => first + i);
      if (first > 0 && places.every((place) => round.verdict[place] === "masked")) continue;
      const block = make("div", undefined, "block");
      const number = (round.block_start + first) / size;
      const done = first / size < round.finished_blocks ? ", finished in this round" : "";
      const scroll = make("div", undefined, "scroll");
      const table = make("table", undefined, "tokens");
      const body = make("tbody");
      body.append(
        bodyRow("before", places.map((place) => stateCell(round.before[place], round.mask_token_id, "known"))),
        bodyRow("draft", places.map((place) => draftCell(round, place))),
        bodyRow("after", places.map((place) => afterCell(round, place))),
      );
      table.append(headRow(places.map((place) => round.block_start + place)), body);
      scroll.append(table);
      block.append(make("h3", `block ${number}${done}`), scroll);
      box.append(block);
    }
  }

  function showCopies(round) {
    const layout = round.layout;
    const columns = [...new Set(layout.positions)].sort((a, b) => a - b);
    const groups = new Map();
    layout.labels.forEach((group, row) => {
      if (!groups.has(group)) groups.set(group, new Map());
      groups.get(group).set(layout.positions[row], row);
    });
    const body = make("tbody");
    for (const [group, rows] of groups) {
      body.append(bodyRow(group, columns.map((column) => {
        const row = rows.get(column);
        if (row === undefined) return make("td", "", "none");
        const cell = stateCell(layout.ids[row], round.mask_token_id, "known");
        cell.title = `row ${layout.labels[row]}, position ${column}`;
        return cell;
      })));
    }
    get("copies").replaceChildren(headRow(columns), body);
    get("copies-note").textContent =
      `One forward pass over ${layout.ids.length} rows in ${groups.size} group${groups.size === 1 ? "" : "s"}, beside ${layout.prefix_length} ` +
      "cached tokens. Columns are positions.";
  }

  const mask = { cell: 8, margin: 56, row: -1, column: -1, layout: null };

  function sizeMask(layout) {
    const count = layout.labels.length;
    const room = get("mask").parentElement.clientWidth - mask.margin;
    mask.layout = layout;
    mask.cell = Math.max(4, Math.min(20, Math.floor(room / count)));
    const side = mask.margin + mask.cell * count + 1;
    const ratio = window.devicePixelRatio || 1;
    const canvas = get("mask");
    canvas.width = canvas.height = Math.round(side * ratio);
    canvas.style.width = canvas.style.height = side + "px";
    canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  function drawMask() {
    const { cell, margin, layout } = mask;
    const count = layout.labels.length;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const pen = get("mask").getContext("2d");
    pen.clearRect(0, 0, margin + cell * count + 1, margin + cell * count + 1);
    const gap = cell > 5 ? 1 : 0;
    for (let row = 0; row < count; row++) {
      for (let column = 0; column < count; column++) {
        const sees = layout.mask[row][column] === "1";
        const crossed = row === mask.row || column === mask.column;
        pen.fillStyle = sees ? colour("--sees") : colour(crossed ? "--line" : "--known-bg");
        pen.fillRect(margin + column * cell, margin + row * cell, cell - gap, cell - gap);
      }
    }
    drawGroups(pen, colour);
    if (mask.row >= 0) {
      pen.strokeStyle = colour("--cross");
      pen.lineWidth = 2;
      pen.strokeRect(margin + mask.column * cell, margin + mask.row * cell, cell, cell);
      pen.strokeRect(margin, margin + mask.row * cell, count * cell, cell);
    }
  }

  function drawGroups(pen, colour) {
    const { cell, margin, layout } = mask;
    const count = layout.labels.length;
    pen.font = "11px ui-monospace, monospace";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    let first = 0;
    let printed = -20;
    for (let row = 1; row <= count; row++) {
      if (row < count && layout.labels[row] === layout.labels[first]) continue;
      pen.strokeStyle = colour("--soft");
      pen.lineWidth = 0.5;
      pen.strokeRect(margin, margin + first * cell, count * cell, (row - first) * cell);
      pen.strokeRect(margin + first * cell, margin, (row - first) * cell, count * cell);
      const middle = margin + ((first + row) / 2) * cell;
      if (middle - printed >= 11) {
        const label = layout.labels[first].slice(0, 7);
        pen.fillStyle = colour("--ink");
        pen.fillText(label, margin - 5, middle);
        pen.save();
        pen.translate(middle, margin - 5);
        pen.rotate(Math.PI / 2);
        pen.fillText(label, 0, 0);
        pen.restore();
        printed = middle;
      }
      first = row;
    }
  }

  function tellCell(row, column) {
    const layout = mask.layout;
    const count = layout.labels.length;
    mask.row = row;
    mask.column = column;
    drawMask();
    const maskId = rounds[current].mask_token_id;
    const name = (i) => `${layout.labels[i]} pos ${layout.positions[i]} (${tokenText(layout.ids[i], maskId)})`;
    const seen = [];
    for (let i = 0; i < count; i++) if (layout.mask[row][i] === "1") seen.push(i);
    const verb = layout.mask[row][column] === "1" ? "sees" : "does not see";
    get("cell").textContent =
      `row ${name(row)} ${verb} ${name(column)}. In all it sees the ${layout.prefix_length} cached tokens and ` +
      `${seen.length} rows of the tail: ${ranges(seen).join(", ")}.`;
  }

  // Rows of the tail by group: "S0.2 pos 36 37".
  function ranges(rows) {
    const groups = new Map();
    for (const row of rows) {
      const label = mask.layout.labels[row];
      groups.set(label, [...(groups.get(label) ?? []), mask.layout.positions[row]]);
    }
    return [...groups].map(([label, positions]) => `${label} pos ${positions.join(" ")}`);
  }

  function pointAt(event) {
    const box = get("mask").getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - mask.margin) / mask.cell);
    const row = Math.floor((event.clientY - box.top - mask.margin) / mask.cell);
    const count = mask.layout.labels.length;
    if (row >= 0 && column >= 0 && row < count && column < count) tellCell(row, column);
  }

  function moveCell(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    const last = mask.layout.labels.length - 1;
    const inside = (value) => Math.max(0, Math.min(last, value));
    tellCell(inside(Math.max(0, mask.row) + move[0]), inside(Math.max(0, mask.column) + move[1]));
  }

  function showMask(round) {
    sizeMask(round.layout);
    mask.row = mask.column = -1;
    drawMask();
    get("cell").textContent = "Point at a cell, or focus the picture and use the arrow keys.";
    get("mask-note").textContent =
      `Rows look, columns are looked at: a filled cell is visible. Every row also sees the ${round.layout.prefix_length} ` +
      "cached tokens, which are not drawn.";
    get("mask").setAttribute("aria-label", `Attention mask, ${round.layout.labels.length} rows`);
  }

  let current = 0;

  function go(index) {
    current = Math.max(0, Math.min(rounds.length - 1, index));
    const round = rounds[current];
    get("slider").value = String(current);
    get("where").textContent = `round ${current + 1} of ${rounds.length}`;
    get("previous").disabled = current === 0;
    get("next").disabled = current === rounds.length - 1;
    showBlocks(round);
    showCopies(round);
    showMask(round);
    for (const token of get("answer").children) token.classList.toggle("here", token.dataset.round === String(current));
    if (location.hash || current > 0) history.replaceState(null, "", "#" + (current + 1));
  }

  function start() {
    showText();
    showStats();
    if (!rounds.length) {
      get("blocks").textContent = "There was nothing to decode: the trace has no round.";
      return;
    }
    get("slider").max = String(rounds.length - 1);
    get("slider").addEventListener("input", () => go(Number(get("slider").value)));
    get("previous").addEventListener("click", () => go(current - 1));
    get("next").addEventListener("click", () => go(current + 1));
    get("mask").addEventListener("pointermove", pointAt);
    get("mask").addEventListener("pointerdown", pointAt);
    get("mask").addEventListener("keydown", moveCell);
    document.addEventListener("keydown", (event) => {
      if (event.target === get("slider") || event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "ArrowLeft") go(current - 1);
      if (event.key === "ArrowRight") go(current + 1);
    });
    window.addEventListener("resize", () => {
      sizeMask(rounds[current].layout);
      drawMask();
    });
    window.addEventListener("hashchange", () => go((parseInt(location.hash.slice(1), 10) || 1) - 1));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMask);
    go((parseInt(location.hash.slice(1), 10) || 1) - 1);
  }

  start();
})();
