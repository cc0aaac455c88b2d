// A panel in the browser: its controls, a caption, the figure with its numbers, and where the
// values do not fit together, why not and buttons that mend them. Nothing is computed here.

// Labels find their controls by ids. Each panel loads this file anew, and counts from 0.
const family = `course-${Math.random().toString(36).slice(2)}`;
let named = 0;
const PLAY_MS = 3000; // a sentence, a few numbers and a picture are read meanwhile
const QUIET_MS = 700; // a screen reader hears a sentence when the slider has come to rest
const TOLD_MS = 8000;
const ANSWER_MS = 4000; // an answer takes a tenth of a second, unless the kernel does something else

const text = (spec, index) => {
  const word = spec.texts ? spec.texts[index] : (spec.least + index).toLocaleString("en");
  return spec.unit ? `${word} ${spec.unit}` : word;
};
const last = (spec) => (spec.texts ? spec.texts.length - 1 : spec.most - spec.least);

// What stands below must not jump: the room of a figure and of a caption grows where it must, and
// shrinks only with another width, in a smaller window or at another zoom.
const keepRoom = (element) => {
  if (element.roomFor !== element.offsetWidth) {
    element.roomFor = element.offsetWidth;
    element.style.minHeight = "";
    element.room = 0;
  }
  const height = element.firstChild ? element.offsetHeight : 0;
  if (height > (element.room ?? 0)) element.style.minHeight = `${(element.room = height)}px`;
};

// Each kind of control: its row, and how it shows another index.
const kinds = {
  slider(spec, move) {
    const id = `${family}-${named++}`;
    const input = tag("input", { type: "range", id, min: 0, max: last(spec), step: 1 });
    const said = tag("output", { className: "course-value" });
    said.setAttribute("for", id);
    // The room of the longest text from the start: a slider keeps its length while it is moved.
    const unit = spec.unit ? spec.unit.length + 1 : 0;
    if (spec.texts) said.style.minWidth = `${0.9 * (Math.max(...spec.texts.map((word) => word.length)) + unit)}ch`;
    input.addEventListener("input", () => move(Number(input.value)));
    const show = (index, now = spec) => {
      input.max = last(now);
      input.value = index;
      input.setAttribute("aria-valuetext", text(now, index));
      said.textContent = text(now, index);
    };
    return { parts: [tag("label", { htmlFor: id, textContent: spec.label }), input, said], show };
  },

  number(spec, move, tell) {
    const slider = kinds.slider(spec, move);
    const [label, range, said] = slider.parts;
    const box = tag("input", { type: "number", min: spec.least, max: spec.most, step: 1 });
    box.setAttribute("aria-label", `${spec.label}, as a number`);
    box.addEventListener("change", () => {
      const typed = box.value || "nothing";
      const taken = Math.min(Math.max(Math.round(Number(box.value) || 0), spec.least), spec.most);
      move(taken - spec.least);
      const range = `${spec.least.toLocaleString("en")} to ${spec.most.toLocaleString("en")}`;
      if (Number(typed) !== taken) tell(`${spec.label} takes whole numbers from ${range}: ${typed} became ${taken.toLocaleString("en")}.`);
    });
    said.className = "course-value";
    said.replaceChildren(box, spec.unit ? ` ${spec.unit}` : "");
    const show = (index) => {
      range.value = index;
      range.setAttribute("aria-valuetext", text(spec, index));
      box.value = spec.least + index;
    };
    return { parts: [label, range, said], show };
  },

  choice(spec, move) {
    const id = `${family}-${named++}`;
    const options = spec.texts.map((word, index) => tag("option", { value: index }, word));
    const input = tag("select", { id }, ...options);
    input.addEventListener("change", () => move(Number(input.value)));
    const show = (index) => (input.value = index);
    return { parts: [tag("label", { htmlFor: id, textContent: spec.label }), input], show };
  },

  flag(spec, move) {
    const id = `${family}-${named++}`;
    const input = tag("input", { type: "checkbox", id });
    input.addEventListener("change", () => move(Number(input.checked)));
    const show = (index) => (input.checked = Boolean(index));
    return { parts: [tag("label", { htmlFor: id, textContent: spec.label }), input], show };
  },

  steps(spec, move) {
    let now = spec;
    let index = 0;
    let timer = null;
    const slider = kinds.slider(spec, (to) => (stop(), move(to)));
    const button = (name, sign, click) => {
      const made = tag("button", { type: "button", textContent: sign, title: name });
      made.setAttribute("aria-label", name);
      made.addEventListener("click", click);
      return made;
    };
    const play = button("Play", "▶", () => (timer ? stop() : start()));
    const stop = () => {
      clearInterval(timer);
      timer = null;
      play.textContent = "▶";
      play.setAttribute("aria-label", "Play");
    };
    const start = () => {
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
      move(index < last(now) ? index + 1 : 0);
      timer = setInterval(() => {
        if (!play.isConnected || index >= last(now)) return stop();
        move(index + 1);
      }, PLAY_MS);
    };
    const back = button("One step back", "‹", () => (stop(), move(Math.max(index - 1, 0))));
    const on = button("One step on", "›", () => (stop(), move(Math.min(index + 1, last(now)))));
    const show = (to, newer = now) => {
      now = newer;
      index = to;
      slider.show(to, now);
      const told = `${to} of ${last(now)}`;
      slider.parts[1].setAttribute("aria-valuetext", told);
      slider.parts[2].textContent = told;
    };
    const [label, range, said] = slider.parts;
    return { parts: [label, tag("span", { className: "course-walk" }, play, back, on), range, said], show };
  },
};

function render({ model, el }) {
  const figure = tag("div", { className: "course-figure" });
  const caption = tag("p", { className: "course-caption" });
  const problem = tag("div", { className: "course-problem", hidden: true });
  problem.setAttribute("role", "alert");
  const heard = tag("p", { className: "course-heard" });
  heard.setAttribute("aria-live", "polite");
  const gone = tag("p", {
    className: "course-gone",
    textContent: "No kernel runs behind this panel: run its cell again (Shift-Enter) to move it.",
  });
  const waits = tag("p");
  waits.setAttribute("role", "status");
  const told = tag("p");
  told.setAttribute("role", "status");
  let telling = null;
  const tell = (words) => {
    clearTimeout(telling);
    told.textContent = words;
    telling = setTimeout(() => (told.textContent = ""), TOLD_MS);
  };
  const rows = tag("div", { className: "course-controls" });

  // What is shown says for which values it is: until they are these, the kernel has not answered.
  let waiting = null;
  const answered = () => {
    const [asked, given] = [model.get("values"), model.get("shown").values];
    return Object.keys(asked).every((name) => asked[name] === given[name]);
  };
  const ask = (values) => {
    tell("");
    model.set("values", values);
    model.save_changes();
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (answered()) return;
      waits.textContent = model.get("late") ?? "No answer yet: the kernel runs another cell, or has ended. If it has, run this cell again.";
    }, ANSWER_MS);
  };

  const shows = {};
  for (const spec of model.get("controls")) {
    const name = spec.name;
    const move = (index) => {
      ask({ ...model.get("values"), [name]: index });
      shows[name](index);
    };
    const { parts, show } = kinds[spec.kind](spec, move, tell);
    shows[name] = show;
    rows.append(tag("div", { className: `course-control course-${spec.kind}` }, ...parts));
  }
  const put = () => {
    const values = model.get("values");
    for (const spec of model.get("controls")) shows[spec.name](values[spec.name], spec);
  };

  let saying = null;
  const draw = () => {
    const shown = model.get("shown");
    if (answered()) waits.textContent = "";
    if (figure.innerHTML === "" || figure.page !== shown.page) {
      figure.page = shown.page;
      figure.innerHTML = shown.page;
    }
    caption.textContent = shown.caption;
    caption.hidden = !shown.caption;
    figure.classList.toggle("course-stale", Boolean(shown.problem));
    problem.hidden = !shown.problem;
    if (shown.problem) {
      const buttons = shown.mends.map((mend) => {
        const made = tag("button", { type: "button", textContent: mend.text });
        made.addEventListener("click", () => {
          ask(mend.values);
          put();
        });
        return made;
      });
      problem.replaceChildren(tag("span", { textContent: shown.problem }), ...buttons);
    }
    requestAnimationFrame(() => [figure, caption].forEach(keepRoom));
    clearTimeout(saying);
    saying = setTimeout(() => (heard.textContent = `${shown.caption} ${shown.sentence}`), QUIET_MS);
  };

  const giveKeysBack = keepKeys(el);
  el.classList.add("course-panel");
  el.append(gone, rows, caption, tag("div", { className: "course-stage" }, figure, tag("div", { className: "course-notes" }, problem, told, waits)), heard);
  put();
  draw();
  model.on("change:values", put);
  model.on("change:controls", put);
  model.on("change:shown", draw);
  const resized = new ResizeObserver(() => [figure, caption].forEach(keepRoom));
  resized.observe(rows);
  return () => {
    resized.disconnect();
    giveKeysBack();
  };
}

export default { render };
