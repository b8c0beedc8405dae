// What all report pages do: draw charts, sort and filter tables. Pages add files of their own.
"use strict";

const report = {
  views: new Map(), // Vega views by the name of their chart

  /** Return colours for Vega of the page's light or dark ground. */
  theme() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: null },
      axis: { labelColor: of("--soft"), titleColor: of("--soft"), gridColor: of("--line"), domainColor: of("--line"), tickColor: of("--line"), titleFontWeight: "normal" },
      legend: { labelColor: of("--ink"), titleColor: of("--soft"), orient: "top" },
      bar: { color: of("--accent") },
      line: { color: of("--accent") },
      rule: { color: of("--ink") },
      text: { color: of("--ink") },
    };
  },

  /** Draw one chart, once; its figure gets data-drawn, or data-error with the reason. */
  async draw(figure) {
    if (figure.dataset.begun) return;
    figure.dataset.begun = "yes";
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    try {
      const { view } = await vegaEmbed(figure.querySelector(".plot"), spec, {
        ast: true, // no eval, which the page's policy forbids
        actions: false,
        renderer: "canvas",
        config: report.theme(),
        loader: { load: () => Promise.reject(new Error("charts load nothing")) },
      });
      report.views.set(figure.id, view);
      figure.dataset.drawn = "yes";
      figure.dispatchEvent(new CustomEvent("drawn", { bubbles: true, detail: view }));
    } catch (error) {
      figure.dataset.error = String(error);
      console.error(figure.id, error);
    }
  },

  /** Sort a table by a column: numbers by value, all else as text. */
  sort(table, column, descending) {
    const body = table.tBodies[0];
    const value = (row) => {
      const text = row.cells[column].textContent;
      const number = Number(row.cells[column].dataset.value ?? text.replaceAll(",", ""));
      return text === "" || Number.isNaN(number) ? text : number;
    };
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => (descending ? order(b, a) : order(a, b)));
    body.append(...rows.map(([, row]) => row));
  },

  /** Make the tables and charts of a part of the page ready for its reader. */
  ready(root) {
    readyTables(root);
    readyCharts(root);
  },
};

/** Return the elements that match in a part of the page, itself included. */
const within = (root, selector) => [...(root.matches?.(selector) ? [root] : []), ...root.querySelectorAll(selector)];

function readyTables(root) {
  for (const table of within(root, "table.sortable")) {
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        report.sort(table, column, descending);
      });
      head.replaceChildren(button);
    }
  }
  for (const input of within(root, "input[data-filter]")) {
    const table = document.getElementById(input.dataset.filter);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }
}

function readyCharts(root) {
  const figures = within(root, "figure.chart");
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) {
          seen.unobserve(target);
          report.draw(target);
        }
      }
    },
    { rootMargin: "600px" },
  );
  for (const figure of figures) seen.observe(figure);
  // Everything is drawn on paper, also what was never scrolled to.
  addEventListener("beforeprint", () => figures.forEach(report.draw));
}

document.addEventListener("DOMContentLoaded", () => report.ready(document));
