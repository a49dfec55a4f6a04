(function () {
  "use strict";

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = JSON.parse(document.getElementById("charts").textContent);

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /* plotly knows nothing of the page's theme: axes, grid and text get its colours. */
  function themed(layout) {
    const clear = "rgba(0,0,0,0)";
    const own = JSON.parse(JSON.stringify(layout));
    const result = Object.assign({
      margin: { l: 60, r: 16, t: 16, b: 48 },
      paper_bgcolor: clear, plot_bgcolor: clear,
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      /* On a touch screen a finger on a chart scrolls the page. */
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    }, own);
    result.legend = Object.assign({ orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, own.legend);
    /* A chart of two parts has xaxis2 and yaxis2 as well. */
    const axes = Object.keys(own).filter((key) => /^[xy]axis/.test(key));
    for (const axis of new Set(["xaxis", "yaxis", ...axes])) {
      result[axis] = Object.assign({
        gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"),
        automargin: true,
      }, own[axis]);
    }
    return result;
  }

  /* Marks that must stand out from bars and ground alike have the colour of the text. */
  function inked(data) {
    return JSON.parse(JSON.stringify(data).replaceAll('"#010203"', JSON.stringify(colour("--ink"))));
  }

  function draw(chart) {
    return Plotly.react("chart-" + chart.name, inked(chart.figure.data), themed(chart.figure.layout), {
      responsive: true, displayModeBar: false,
    });
  }

  function drawAll() {
    return Promise.all(charts.map(draw)).then(function () {
      document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
    });
  }

  /* A reload by script keeps the reader's place, which a meta refresh does not; it waits for one who
     has unfolded something or is typing. */
  function again() {
    const isBusy = document.querySelector("details[open]") || document.activeElement.matches("input");
    if (isBusy) setTimeout(again, 1000);
    else location.reload();
  }

  /* Counted from the last chart on: a slow device would see none otherwise. */
  drawAll().then(function () {
    const refresh = Number(document.body.dataset.refreshS || 0);
    if (refresh) setTimeout(again, 1000 * refresh);
  });
  dark.addEventListener("change", drawAll);

  /* The filter stands in the address, so that it outlives a page that refreshes itself. */
  const filter = document.getElementById("filter");
  if (!filter) return;
  const [outcome, text, shown] = ["outcome", "text", "shown"].map((name) => document.getElementById("filter-" + name));
  const rows = Array.from(document.querySelectorAll("#trials tbody tr"));
  const wanted = new URLSearchParams(location.hash.slice(1));
  outcome.value = wanted.get("outcome") || "";
  if (outcome.selectedIndex < 0) outcome.value = "";
  text.value = wanted.get("text") || "";

  function apply() {
    const word = text.value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      const fits = (!outcome.value || row.dataset.outcome === outcome.value) && row.textContent.toLowerCase().includes(word);
      row.hidden = !fits;
      count += fits ? 1 : 0;
    }
    shown.textContent = count + " of " + rows.length;
    const chosen = new URLSearchParams();
    if (outcome.value) chosen.set("outcome", outcome.value);
    if (text.value) chosen.set("text", text.value);
    if (String(chosen) !== location.hash.slice(1)) history.replaceState(null, "", "#" + chosen);
  }

  filter.addEventListener("input", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  apply();
})();
