// What all our widgets begin with: an element with its properties and children, and their keys.

const tag = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

// JupyterLab would take plain keys for itself: arrows fold headings, "dd" deletes a cell. It listens
// at the document, so this must be said before. Keys like Ctrl+S stay JupyterLab's. The answer is
// what gives them back.
const keepKeys = (el) => {
  const keep = (event) => {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const runs = event.shiftKey && event.key === "Enter";
    if (plain && !runs && el.contains(event.target)) event.stopPropagation();
  };
  window.addEventListener("keydown", keep, true);
  return () => window.removeEventListener("keydown", keep, true);
};
