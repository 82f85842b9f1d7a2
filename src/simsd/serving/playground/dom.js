// Small helpers around the document. All text goes in as text nodes: nothing that is said can become markup.

export const get = (id) => document.getElementById(id);

/** An element with a class and children, which are elements or text. */
export function make(tag, className = "", ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

export function button(label, className, onClick) {
  const node = make("button", className, label);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

/** A token as it can be read in a cell: blanks at its ends are dropped, what has nothing else is spelt out. */
export function cellText(token) {
  const shown = token.trim() || token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣");
  return shown.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}]/gu, (char) => `\\u{${char.codePointAt(0).toString(16)}}`) || "∅";
}

/** Calls `work` at most once a frame, however often it is asked for. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

export const decimal = (value, digits = 1) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

export const percent = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);

/** The first letter large, a full stop at the end. */
export function sentence(text) {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}
