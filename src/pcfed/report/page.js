"use strict";
(() => {
  const figuresIn = (page) => JSON.parse(page.getElementById("figures").textContent);
  let figures = figuresIn(document);
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
    if (trace.type === "bar") return { ...trace, marker: { color: ink } };
    if (trace.mode === "text") return { ...trace, textfont: { color: colour("text") } };
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

  /* Series that are switched off, by group of charts, which has the name of its first chart. */
  const hidden = new Map();
  const hiddenIn = (group) => {
    const name = group.querySelector(".plot").id;
    if (!hidden.has(name)) hidden.set(name, new Set());
    return hidden.get(name);
  };
  const draw = (plot, size = {}) => {
    const { data, layout } = figures[plot.id];
    const off = hiddenIn(plot.closest(".plots"));
    const traces = data.map((trace) => ({ ...coloured(trace), visible: !off.has(trace.meta.series) }));
    plot.dataset.drawn = "yes";
    return Plotly.react(plot, traces, { ...fullLayout(layout), ...size }, config);
  };
  const plotsIn = (part) => [...part.querySelectorAll(".plot")];
  const redraw = (part) => plotsIn(part).filter((plot) => plot.dataset.drawn).forEach((plot) => draw(plot));

  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button.series");
    if (!button) return;
    const group = button.closest(".plots");
    const shown = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!shown));
    hiddenIn(group)[shown ? "add" : "delete"](button.dataset.series);
    redraw(group);
  });

  /* Charts near the view are drawn first, the others while the browser is idle. */
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !target.dataset.drawn) draw(target);
    }
  }, { rootMargin: "400px" });
  const whenIdle = window.requestIdleCallback || ((next) => setTimeout(next, 20));
  const drawNext = () => {
    const next = plotsIn(document).find((plot) => !plot.dataset.drawn);
    if (!next) return;
    draw(next);
    whenIdle(drawNext);
  };

  /* On paper, charts have the width of the paper and light colours, and tables are unfolded. */
  const print = (on) => {
    const theme = root.dataset.theme;
    root.classList.toggle("printing", on);
    document.querySelectorAll("details.fold").forEach((each) => { each.open = on; });
    if (on) root.dataset.theme = "light";
    plotsIn(document).forEach((plot) => draw(plot, on ? { width: plot.clientWidth, height: plot.clientHeight } : {}));
    if (!on) return;
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));

  /* Tables that are wider than the screen say so. */
  const mark = (box) => {
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    box.classList.toggle("at-end", box.scrollLeft + box.clientWidth >= box.scrollWidth - 1);
  };
  const markAll = () => document.querySelectorAll(".scroll").forEach(mark);
  window.addEventListener("resize", markAll);
  document.addEventListener("toggle", markAll, { capture: true });
  document.addEventListener("scroll", ({ target }) => {
    if (target.classList?.contains("scroll")) mark(target);
  }, { passive: true, capture: true });

  /* Light or dark: the system's setting, until the reader chooses. */
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const label = () => { document.getElementById("theme-name").textContent = isDark() ? "Light" : "Dark"; };
  const theme = remembered();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  document.addEventListener("click", ({ target }) => {
    if (!target.closest("#theme")) return;
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* private window */ }
    label();
    redraw(document);
  });
  dark.addEventListener("change", () => { label(); redraw(document); });

  const setUp = () => {
    label();
    markAll();
    plotsIn(document).forEach((plot) => observer.observe(plot));
    whenIdle(drawNext);
  };
  setUp();
  if (window.matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;

  /* A page that a server updates: charts that are there stay and get new data, and the section in
     view stays where it is. */
  const replaceWith = (page) => {
    const parts = [...document.querySelectorAll("main section")].map((part) => [part.id, part.getBoundingClientRect()]);
    const begins = parts.find(([, box]) => box.top >= 0 && box.top < window.innerHeight);
    const [anchor, { top }] = begins || parts.find(([, box]) => box.bottom > 0) || parts[0];
    const isOpen = new Map([...document.querySelectorAll("details")].map((each) => [each.firstElementChild.textContent, each.open]));
    for (const each of page.querySelectorAll("details")) {
      each.open = isOpen.get(each.firstElementChild.textContent) ?? each.open;
    }
    figures = figuresIn(page);
    for (const plot of plotsIn(page)) document.getElementById(plot.id)?.dataset.drawn && plot.replaceWith(document.getElementById(plot.id));
    for (const group of page.querySelectorAll(".plots")) {
      const off = hiddenIn(group);
      group.querySelectorAll("button.series").forEach((each) => each.setAttribute("aria-pressed", String(!off.has(each.dataset.series))));
    }
    for (const part of ["nav", "main"]) document.querySelector(part).replaceChildren(...page.querySelector(part).childNodes);
    document.body.dataset.live = page.body.dataset.live;
    redraw(document);
    setUp();
    if (window.scrollY > 0 && document.getElementById(anchor)) {
      window.scrollBy({ top: document.getElementById(anchor).getBoundingClientRect().top - top, behavior: "instant" });
    }
  };
  let tag = "";
  const update = async () => {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch("/", { headers, cache: "no-store" }).catch(() => null);
    if (answer?.status === 200) {
      tag = answer.headers.get("ETag");
      replaceWith(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } else if (!answer) {
      document.querySelector(".live").textContent = "The command has ended, and this page is not updated any more.";
    }
    if (document.body.dataset.live === "running") setTimeout(update, answer ? 1000 : 5000);
  };
  if (document.body.dataset.live === "running") setTimeout(update, 1000);
})();
