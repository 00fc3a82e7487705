"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const fine = window.matchMedia("(pointer: fine)").matches;

  /* The theme's colours, as the browser resolves them. */
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const faint = (rgb, opacity) => rgb.replace(/^rgba?\(([^)]+)\)$/, (_, parts) =>
    `rgba(${parts.split(",").slice(0, 3).join(",")}, ${opacity})`);

  const coloured = (trace) => {
    const ink = colour(trace.meta.colour);
    if (trace.type === "bar") return { ...trace, marker: { color: ink }, textfont: { color: colour("text") } };
    if (trace.meta.band) return { ...trace, fillcolor: faint(ink, 0.16), line: { ...trace.line, color: ink } };
    return { ...trace, marker: { ...trace.marker, color: ink }, line: { ...trace.line, color: ink } };
  };

  const fullLayout = (layout) => {
    const quiet = colour("quiet"), grid = colour("grid"), text = colour("text");
    const axis = { gridcolor: grid, zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true,
      fixedrange: !fine, nticks: 6 };
    const of = (own) => ({ ...axis, ...own, title: { ...own.title, standoff: 8, font: { size: 12, color: quiet } } });
    return {
      ...layout,
      xaxis: of(layout.xaxis),
      yaxis: of(layout.yaxis),
      shapes: (layout.shapes || []).map((shape) => ({ ...shape, line: { color: text, width: 1.5, dash: "dot" } })),
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: quiet },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 8, t: 8, b: 8 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: text },
      showlegend: false,
      hovermode: layout.hovermode || "x unified",
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("line"), font: { color: text, size: 12 } },
      dragmode: fine ? "zoom" : false,
      bargap: 0.28,
      bargroupgap: 0.12,
    };
  };
  const config = { responsive: true, displaylogo: false, displayModeBar: fine ? "hover" : false,
    modeBarButtons: [["toImage", "resetScale2d"]] };

  /* Series that are switched off, by group of charts. */
  const hidden = new Map();
  const hiddenFor = (plot) => hidden.get(plot.closest(".plots")) || new Set();
  const draw = (plot, size = {}) => {
    const { data, layout } = figures[plot.id];
    const off = hiddenFor(plot);
    const traces = data.map((trace) => ({ ...coloured(trace), visible: !off.has(trace.meta.series) }));
    plot.dataset.drawn = "yes";
    return Plotly.react(plot, traces, { ...fullLayout(layout), ...size }, config);
  };
  const plots = [...document.querySelectorAll(".plot")];
  const redraw = (list) => list.filter((plot) => plot.dataset.drawn).forEach((plot) => draw(plot));

  for (const button of document.querySelectorAll("button.series")) {
    button.addEventListener("click", () => {
      const group = button.closest(".plots");
      const off = hidden.get(group) || new Set();
      hidden.set(group, off);
      const shown = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!shown));
      off[shown ? "add" : "delete"](button.dataset.series);
      redraw([...group.querySelectorAll(".plot")]);
    });
  }

  /* Charts near the view are drawn first, the others while the browser is idle. */
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !target.dataset.drawn) draw(target);
    }
  }, { rootMargin: "400px" });
  plots.forEach((plot) => observer.observe(plot));
  const whenIdle = window.requestIdleCallback || ((next) => setTimeout(next, 20));
  const drawNext = () => {
    const next = plots.find((plot) => !plot.dataset.drawn);
    if (!next) return;
    draw(next);
    whenIdle(drawNext);
  };
  whenIdle(drawNext);

  /* On paper, charts have the width of the paper and light colours. */
  const print = (on) => {
    const theme = root.dataset.theme;
    root.classList.toggle("printing", on);
    if (on) root.dataset.theme = "light";
    plots.forEach((plot) => draw(plot, on ? { width: plot.clientWidth, height: plot.clientHeight } : {}));
    if (!on) return;
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));

  /* Tables that are wider than the screen say so. */
  const scrolling = [...document.querySelectorAll(".scroll")];
  const mark = (box) => {
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    box.classList.toggle("at-end", box.scrollLeft + box.clientWidth >= box.scrollWidth - 1);
  };
  scrolling.forEach((box) => {
    mark(box);
    box.addEventListener("scroll", () => mark(box), { passive: true });
  });
  window.addEventListener("resize", () => scrolling.forEach(mark));

  /* Light or dark: the system's setting, until the reader chooses. */
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { document.getElementById("theme-name").textContent = isDark() ? "Light" : "Dark"; };
  const theme = remembered();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private window */ }
    label();
    redraw(plots);
  });
  dark.addEventListener("change", () => { label(); redraw(plots); });
  label();

  if (window.matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;
})();
