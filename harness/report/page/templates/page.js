"use strict";
(() => {
  const say = (words) => { document.getElementById("said").textContent = words; };

  // Theme: follows the system until one is chosen; storage may be forbidden on file://.
  const themes = ["auto", "light", "dark"];
  const stored = () => { try { return localStorage.getItem("attnproof-theme"); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem("attnproof-theme", theme); } catch { /* not kept */ } };
  const toggle = document.createElement("button");
  toggle.type = "button";
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    toggle.textContent = `Theme: ${theme}`;
    toggle.value = theme;
  };
  toggle.addEventListener("click", () => {
    const theme = themes[(themes.indexOf(toggle.value) + 1) % themes.length];
    show(theme);
    store(theme);
  });
  show(themes.includes(stored()) ? stored() : "auto");
  document.getElementById("tools").append(toggle);

  // Without a script there are no copy buttons, as they could not work.
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) throw new Error("copying is not allowed here");
    }
  };
  for (const block of document.querySelectorAll("[data-copy]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", block.dataset.copy);
    button.addEventListener("click", async () => {
      const done = await copy(block.querySelector("code").textContent).then(() => true, () => false);
      button.textContent = done ? "Copied" : "Failed";
      say(done ? "Copied" : "Copying failed: select the text instead");
      button.focus();
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.append(button);
  }

  // Cards after the third are folded; without a script all are open.
  const OPEN = 3;
  for (const cards of document.querySelectorAll(".cards")) {
    [...cards.querySelectorAll(".fold")].forEach((fold, index) => { if (index >= OPEN) fold.open = false; });
  }

  // Filters: one for each name in data-filters that has two values or more, and one for text.
  const values = (card, name) => (card.dataset[name] || "").split("\n").filter(Boolean);
  const field = (form, words, control) => {
    const label = document.createElement("label");
    label.append(words, control);
    form.append(label);
    return control;
  };
  const filter = (cards) => {
    const all = [...cards.querySelectorAll(".card")];
    if (all.length <= 3) return;
    const form = document.createElement("form");
    form.className = "filter";
    form.setAttribute("role", "search");
    form.setAttribute("aria-label", `Filter of ${cards.dataset.noun}s`);
    const selects = [];
    for (const pair of cards.dataset.filters.split(" ")) {
      const [name, words] = pair.split(":");
      const choices = [...new Set(all.flatMap((card) => values(card, name)))].sort();
      if (choices.length < 2) continue;
      const select = field(form, words, document.createElement("select"));
      select.name = name;
      select.add(new Option("all", ""));
      for (const choice of choices) {
        const count = all.filter((card) => values(card, name).includes(choice)).length;
        select.add(new Option(`${choice} (${count})`, choice));
      }
      selects.push(select);
    }
    const words = field(form, "Text", document.createElement("input"));
    words.type = "search";
    words.name = "text";
    const button = (text, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", act);
      form.append(made);
    };
    const shown = document.createElement("output");
    const texts = new Map(all.map((card) => [card, card.textContent.toLowerCase()]));
    const links = [...cards.parentElement.querySelectorAll(".contents a")];
    const apply = () => {
      const sought = words.value.trim().toLowerCase();
      const kept = all.filter((card) => texts.get(card).includes(sought)
        && selects.every((select) => !select.value || values(card, select.name).includes(select.value)));
      for (const card of all) card.hidden = !kept.includes(card);
      const ids = new Set(kept.map((card) => `#${card.id}`));
      for (const link of links) link.closest("li").hidden = !ids.has(link.getAttribute("href"));
      shown.textContent = `${kept.length} of ${all.length} shown`;
    };
    const clear = () => { form.reset(); apply(); };
    const fold = (open) => () => { for (const part of cards.querySelectorAll(".fold")) part.open = open; };
    button("Clear", clear);
    button("Unfold all", fold(true));
    button("Fold all", fold(false));
    form.append(shown);
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    cards.clear = clear;
    cards.before(form);
    apply();
  };
  for (const cards of document.querySelectorAll(".cards")) filter(cards);

  // A box that scrolls must be reachable by keyboard; other boxes should not be tab stops.
  const reach = () => {
    for (const box of document.querySelectorAll(".scroll:not([role]), .code pre")) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  reach();

  // Deep links: a target that is folded or filtered out is shown, and its heading gets the focus.
  const arrive = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) target.closest(".cards")?.clear();
    target.querySelector(".fold")?.setAttribute("open", "");
    for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    target.scrollIntoView();
    target.querySelector("h3[tabindex]")?.focus({ preventScroll: true });
  };
  addEventListener("hashchange", arrive);
  addEventListener("load", arrive); // before it, the browser would take the focus away again

  // Folded parts are printed open.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of folded) part.open = false;
  });
})();
