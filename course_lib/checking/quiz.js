// A group of radio buttons for each question, a button, and a line that is announced.

function element(name, parent, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function render({ model, el }) {
  const quiz = `quiz-${Math.random().toString(36).slice(2)}`;
  const form = element("form", el, "", {
    class: "course-quiz",
    "aria-label": model.get("title"),
  });
  element("p", form, "No kernel runs behind this quiz: run its cell again (Shift-Enter) to check answers.", {
    class: "gone",
  });
  const groups = model.get("shown").map(({ text, choices }, place) => {
    const group = element("fieldset", form);
    element("legend", group, `${place + 1}. ${text}`);
    const row = element("div", group, "", { class: "choices" });
    const radios = choices.map((choice, index) => {
      const label = element("label", row);
      const radio = element("input", label, "", { type: "radio", name: `${quiz}-${place}` });
      radio.value = index;
      element("span", label, choice);
      return radio;
    });
    const comment = element("p", group);
    comment.id = `${quiz}-${place}-comment`;
    group.setAttribute("aria-describedby", comment.id);
    row.addEventListener("change", () => judge({ group, comment }, { state: "", text: "" }));
    return { group, radios, comment };
  });
  const foot = element("div", form, "", { class: "foot" });
  element("button", foot, "Check", { type: "submit" });
  const status = element("strong", foot, "", { role: "status", "aria-live": "polite" });

  function judge({ group, comment }, { state, text }) {
    group.className = state;
    comment.textContent = text;
    comment.hidden = !text;
  }

  function update() {
    model.get("feedback").forEach((one, place) => judge(groups[place], one));
    model.get("answers").forEach((answer, place) => {
      groups[place].radios.forEach((radio, index) => (radio.checked = index === answer));
    });
    status.textContent = model.get("result");
  }

  const giveKeysBack = keepKeys(el);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const answers = groups.map(({ radios }) => radios.findIndex((radio) => radio.checked));
    model.send({ answers });
  });
  model.on("change:checks", update);
  update();
  return () => {
    giveKeysBack();
    model.off("change:checks", update);
  };
}

export default { render };
