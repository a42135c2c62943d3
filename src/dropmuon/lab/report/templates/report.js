"use strict";
(() => {
  const root = document.documentElement;
  addEventListener("error", (event) => { root.dataset.error = event.message; });

  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });

  const tip = document.getElementById("tip");
  const near = (value, [low, high, start, end]) => start + (value - low) / (high - low || 1) * (end - start);
  const prefixed = (value, steps, unit) => {
    for (const [size, prefix] of steps) if (value >= size) return `${+(value / size).toPrecision(3)} ${prefix}${unit}`;
    return `${+value.toPrecision(3)} ${unit}`;
  };
  const shown = {
    epoch: (x) => `epoch ${+x.toPrecision(4)}`,
    seconds: (x) => x >= 7200 ? `${(x / 3600).toFixed(1)} h` : x >= 120 ? `${(x / 60).toFixed(1)} min` : `${+x.toPrecision(3)} s`,
    operations: (x) => prefixed(x, [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]], "FLOP"),
    share: (x) => `t = ${x.toFixed(2)}`,
  };

  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - box.height - 8))}px`;
  };
  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return parent.appendChild(made);
  };

  const nearest = (points, value) => points.reduce((a, b) => Math.abs(b[0] - value) < Math.abs(a[0] - value) ? b : a);

  const lines = (chart) => {
    const x = chart.dataset.x.split(" ").map(Number), y = chart.dataset.y.split(" ").map(Number);
    const series = [...chart.querySelectorAll("[data-points]")].map((line) => ({
      name: line.dataset.name, group: line.parentNode, points: JSON.parse(line.dataset.points),
    }));
    const marks = element("g", {}, chart);
    const clear = () => { marks.replaceChildren(); tip.hidden = true; };
    const show = (value, left, top) => {
      marks.replaceChildren();
      tip.replaceChildren();
      const seen = series.filter((each) => each.points.length && getComputedStyle(each.group).display !== "none");
      if (!seen.length) return clear();
      if (chart.dataset.format === "epoch") value = nearest(seen[0].points, value)[0];
      const across = near(value, x);
      element("line", { x1: across, x2: across, y1: y[2], y2: y[3], class: "cursor" }, marks);
      tip.appendChild(document.createElement("b")).textContent = shown[chart.dataset.format](value);
      const rows = seen.map((each) => ({ each, best: nearest(each.points, value) })).sort((a, b) => b.best[1] - a.best[1]);
      for (const { each, best } of rows) {
        const css = each.group.getAttribute("class").replace("s ", "");
        element("circle", { cx: near(best[0], x), cy: near(best[1], y), r: 3.6, class: `point ${css}` }, marks);
        const row = tip.appendChild(document.createElement("div"));
        row.className = css;
        row.appendChild(document.createElement("i"));
        row.append(each.name);
        row.appendChild(document.createElement("span")).textContent = `${(100 * best[1]).toFixed(1)} %`;
      }
      place(left, top);
    };
    const at = (event) => {
      const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      const share = Math.min(1, Math.max(0, (spot.x - x[2]) / (x[3] - x[2])));
      show(x[0] + share * (x[1] - x[0]), event.clientX, event.clientY);
    };
    chart.addEventListener("pointermove", at);
    chart.addEventListener("pointerdown", at);
    chart.addEventListener("pointerleave", clear);
    let share = 0.5;
    const step = () => {
      const box = chart.getBoundingClientRect();
      show(x[0] + share * (x[1] - x[0]), box.left + share * box.width, box.top + box.height / 3);
    };
    chart.addEventListener("blur", clear);
    chart.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -0.05, ArrowRight: 0.05 }[event.key];
      if (event.key === "Escape") clear();
      if (!move) return;
      event.preventDefault();
      share = Math.min(1, Math.max(0, share + move));
      step();
    });
  };
  document.querySelectorAll("svg.lines").forEach(lines);

  document.querySelectorAll("[data-tip]").forEach((mark) => {
    mark.querySelector(":scope > title")?.remove();
    mark.setAttribute("aria-label", mark.dataset.tip);
  });
  document.addEventListener("pointermove", (event) => {
    if (event.target.closest?.("svg.lines")) return;
    const mark = event.target.closest?.("[data-tip]");
    if (!mark) { tip.hidden = true; return; }
    tip.textContent = mark.dataset.tip;
    place(event.clientX, event.clientY);
  });

  addEventListener("beforeprint", () => document.querySelectorAll(".fine details").forEach((each) => { each.open = true; }));
  root.dataset.ready = "yes";
})();
