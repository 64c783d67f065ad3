// Elements are made and changed, never parsed from text: what the server tells is shown, and is never markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// One child for each item, told apart by key: what stays is changed in place, so that nobody loses the focus.
export function fill(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = key(item);
    const child = before.get(name) ?? make(item);
    child.dataset.key = name;
    before.delete(name);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    update(child, item);
  });
  for (const child of before.values()) child.remove();
}

// Rows of a table from texts; the first cell is the row's heading. `classes` are those of the columns.
export function fillRows(body, rows, classes) {
  const make = ({ cells }) =>
    element("tr", {}, ...cells.map((_, index) =>
      index ? element("td", { className: classes[index] ?? "" }) : element("th", { scope: "row" })));
  const update = (tr, { cells }) => cells.forEach((text, index) => say(tr.cells[index], text));
  fill(body, rows, (row) => row.key, make, update);
}
