// One line to write a number in; what stands in it goes to the kernel when Enter is pressed.

function render({ model, el }) {
  const box = tag("input", { type: "text", inputMode: "decimal", autocomplete: "off", size: 14 });
  const unit = model.get("unit");
  const label = tag("label", {}, "Your number ", box, unit ? ` ${unit} ` : " ");
  const form = tag("form", {}, label, tag("button", { textContent: "Commit" }));
  const said = tag("p", { tabIndex: -1 });
  said.setAttribute("role", "status");
  const gone = tag("p", {
    className: "gone",
    textContent: "No kernel runs behind this box: choose Run → Run All Above Selected Cell, then run this cell (Shift-Enter).",
  });

  const update = () => {
    const inside = form.contains(document.activeElement);
    form.hidden = model.get("committed");
    said.textContent = model.get("said");
    said.classList.toggle("heard", form.hidden); // the card above shows it
    if (form.hidden && inside) said.focus(); // the keyboard goes on from here
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    model.send({ text: box.value });
  });

  const giveKeysBack = keepKeys(el);
  el.classList.add("course-prediction");
  el.append(gone, form, said);
  update();
  model.on("change:said", update);
  return () => {
    giveKeysBack();
    model.off("change:said", update);
  };
}

export default { render };
