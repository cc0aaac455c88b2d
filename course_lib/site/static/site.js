// The theme, the search, folded parts and panels of a page. Nothing is loaded before it is needed.
"use strict";
(() => {
  const up = document.currentScript.dataset.up;
  const root = document.documentElement;
  const asked = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
  if (asked("course-theme")) root.dataset.theme = asked("course-theme");

  const add = (src) => new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: failed }));
  });

  // --- The theme: that of the system, until somebody chooses ---------------------------------------
  const themes = () => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const button = document.getElementById("theme");
    const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
    const name = () => (button.textContent = dark() ? "Light" : "Dark");
    button.setAttribute("aria-description", "changes the colours of all pages");
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("course-theme", root.dataset.theme); } catch { /* for this page only */ }
      name();
    });
    system.addEventListener("change", name);
    name();
  };

  // --- What a link leads to is unfolded, and what is printed too -----------------------------------
  const folds = () => {
    const wide = matchMedia("(min-width: 1001px)");
    const menu = document.querySelector(".menu");
    const fit = () => (menu.open = wide.matches);
    wide.addEventListener("change", fit);
    fit();
    const unfold = () => {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!target) return;
      for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      target.scrollIntoView();
    };
    addEventListener("hashchange", unfold);
    unfold();
    addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((fold) => (fold.open = true)));
    // What scrolls in its own box can be scrolled by keys.
    const reach = () => document.querySelectorAll(".wide, .output, .course-figure, .course-card").forEach((box) => {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).overflowX === "auto";
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    });
    addEventListener("resize", reach);
    addEventListener("toggle", reach, true);
    reach();
  };

  // --- Search --------------------------------------------------------------------------------------
  const search = () => {
    const [box, list] = [document.querySelector("[type=search]"), document.getElementById("found")];
    const load = () => (load.once ??= add(`${up}/assets/search.js`));
    const find = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      list.hidden = !words.length;
      if (!words.length || !window.courseIndex) return;
      const score = ({ title, low }) => {
        let sum = 0;
        for (const word of words) {
          const times = low.split(word).length - 1;
          if (!times) return 0;
          sum += Math.min(times, 5) + 20 * title.toLowerCase().includes(word);
        }
        return sum;
      };
      const found = courseIndex.map((part) => [score(part), part]).filter(([sum]) => sum);
      found.sort((one, other) => other[0] - one[0]);
      const said = document.createElement("p");
      said.setAttribute("role", "status");
      said.textContent = found.length ? `${found.length} sections` : "No section has all these words.";
      list.replaceChildren(said, ...found.slice(0, 20).map(([, part]) => {
        const link = Object.assign(document.createElement("a"), { href: `${up}/${part.url}`, textContent: part.title });
        const at = Math.max(0, part.words.toLowerCase().indexOf(words[0]) - 40);
        const around = document.createElement("small");
        around.textContent = `${part.page === part.title ? "" : `${part.page}: `}…${part.words.slice(at, at + 130)}…`;
        link.append(around);
        return link;
      }));
    };
    box.addEventListener("focus", () => load().then(() => {
      courseIndex.forEach((part) => (part.low = `${part.words} ${part.title} ${part.page}`.toLowerCase()));
      find();
    }), { once: true });
    box.addEventListener("input", find);
    box.form.addEventListener("submit", (event) => {
      event.preventDefault();
      list.querySelector("a")?.click();
    });
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !event.target.closest("input, select, textarea")) {
        event.preventDefault();
        box.focus();
      }
      if (event.key === "Escape") list.hidden = true;
    });
    addEventListener("click", (event) => {
      if (!event.target.closest("[role=search]")) list.hidden = true;
    });
    list.addEventListener("click", (event) => (list.hidden = Boolean(event.target.closest("a"))));
  };

  // --- Panels: what a kernel does elsewhere, a worker with Python does here -------------------------
  const worker = () => {
    if (worker.one) return worker.one;
    worker.one = new Worker(`${up}/python/worker.js`, { type: "module" });
    worker.one.onmessage = ({ data }) => models[data.key].answered(data);
    worker.one.onerror = (event) => Object.values(models).forEach((model) => model.answered({ failed: event.message || "it did not load" }));
    return worker.one;
  };
  const models = {};

  // What anywidget asks of a model: get, set, save_changes, on.
  const modelOf = (key, state, say) => {
    const heard = {};
    let [asked, busy, begun] = [false, false, false];
    const change = (name, value) => {
      state[name] = value;
      (heard[`change:${name}`] ?? []).forEach((hear) => hear());
    };
    const send = () => {
      [asked, busy] = [false, true];
      worker().postMessage({ key, source: state.source, values: state.values });
    };
    return {
      get: (name) => state[name],
      set: (name, value) => (state[name] = value),
      on: (name, hear) => (heard[name] ??= []).push(hear),
      save_changes: () => {
        if (!begun) say(`Loading Python, ${window.courseLoads} …`);
        begun = asked = true;
        if (!busy) send();
      },
      // While a slider is dragged, only its newest place is asked for.
      answered: ({ told, failed }) => {
        busy = false;
        if (failed) return say(`Python does not run on this page: ${failed}. Run the notebook instead.`);
        say("");
        told.shown.page = told.shown.page.replace(/\bd(\d+-h\d+)\b/g, `${key}-d$1`);
        if (asked) return change("shown", told.shown), send();
        for (const name of ["values", "controls", "shown"]) change(name, told[name]);
      },
    };
  };

  const panels = () => document.querySelectorAll(".live").forEach((place) => {
    const state = JSON.parse(place.querySelector("script").textContent);
    state.shown.page = place.querySelector(".course-figure").innerHTML;
    state.late = "Python is still loading.";
    const [el, loads] = [document.createElement("div"), document.createElement("p")];
    loads.className = "loads";
    loads.setAttribute("role", "status");
    const say = (words) => (loads.textContent = words);
    const served = location.protocol.startsWith("http");
    say(served ? `This panel moves: its first touch loads Python into the page, ${window.courseLoads}.`
      : "This panel moves where a server shows the page: `course site --serve`.");
    models[place.id] = modelOf(place.id, state, say);
    coursePanel.render({ model: models[place.id], el });
    if (!served) el.querySelectorAll("input, select, button").forEach((control) => (control.disabled = true));
    el.append(loads);
    place.firstElementChild.replaceWith(el);
  });

  addEventListener("DOMContentLoaded", () => {
    themes();
    if (window.coursePanel) panels();
    search();
    folds();
  });
})();
