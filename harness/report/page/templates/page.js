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

  // Deep links: the browser scrolls; the heading gets the focus here.
  const arrive = () => {
    const target = document.getElementById(location.hash.slice(1));
    target?.querySelector("h3[tabindex]")?.focus({ preventScroll: true });
  };
  addEventListener("hashchange", arrive);
  arrive();

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
