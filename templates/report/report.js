(function () {
  "use strict";

  const all = (selector, root) => Array.from((root || document).querySelectorAll(selector));

  /* The contents are the headings that there are. */
  const list = document.querySelector("#contents ul");
  for (const section of all("main section[id]")) {
    const link = document.createElement("a");
    link.href = "#" + section.id;
    link.textContent = section.querySelector("h2").textContent;
    link.addEventListener("click", function (event) {
      /* The address holds the filter: a jump leaves it there. */
      event.preventDefault();
      section.scrollIntoView();
    });
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }

  /* What a pointer is on, in words; on a touch screen, what was touched. */
  const tip = document.getElementById("tip");
  function tell(event) {
    const one = event.target.closest("[data-tip]");
    tip.hidden = !one;
    if (!one) return;
    tip.textContent = one.dataset.tip;
    const right = event.clientX + 14 + tip.offsetWidth > innerWidth;
    tip.style.left = Math.max(4, right ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4)) + "px";
  }
  document.addEventListener("pointermove", tell);
  document.addEventListener("pointerdown", tell);

  /* Copying: the clipboard's own way needs a secure page, which a file is not everywhere. */
  function copied(text) {
    if (navigator.clipboard && isSecureContext) return navigator.clipboard.writeText(text).catch(() => selected(text));
    return Promise.resolve(selected(text));
  }
  function selected(text) {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  for (const button of all(".copy")) {
    button.addEventListener("click", function () {
      copied(document.getElementById(button.dataset.copies).textContent).then(function () {
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
    });
  }

  /* A reload by script keeps the reader's place, which a meta refresh does not; it waits for one who
     has unfolded something or is typing. */
  function again() {
    const isBusy = document.querySelector("details[open], tr.detail") || document.activeElement.matches("input");
    if (isBusy) setTimeout(again, 1000);
    else location.reload();
  }
  const refresh = Number(document.body.dataset.refreshS || 0);
  if (refresh) setTimeout(again, 1000 * refresh);

  /* What runs now: an hour-glass each. */
  const running = all("[data-since]");
  function spelled(s) {
    return s < 120 ? Math.round(s) + " s" : s < 7200 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h";
  }
  function count() {
    for (const one of running) {
      const [ran, usual] = [Math.max(0, Date.now() / 1000 - one.dataset.since), Number(one.dataset.usual || 0)];
      const left = !usual ? "" : ran < usual ? ", about " + spelled(usual - ran) + " left" : ", longer than most";
      one.querySelector(".clock").textContent = spelled(ran) + left;
      if (usual) one.querySelector("progress").value = ran;
    }
  }
  if (running.length) setInterval(count, 1000);

  /* The filter and an open trial stand in the address, so that they outlive a page that refreshes itself. */
  const table = document.getElementById("trials");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = all("tr[data-trial]", body);
  const texts = new Map();
  const [outcome, text, shown, predicted] = ["outcome", "text", "shown", "predicted"].map((name) => document.getElementById("filter-" + name));
  const wanted = new URLSearchParams(location.hash.slice(1));
  outcome.value = wanted.get("outcome") || "";
  if (outcome.selectedIndex < 0) outcome.value = "";
  text.value = wanted.get("text") || "";
  if (predicted) predicted.checked = wanted.has("predicted");

  /* A row shows what differs from the baseline's settings; all of them are found. */
  function textOf(row) {
    if (!texts.has(row)) texts.set(row, (row.textContent + " " + (recordOf(row)?.settings ?? "")).toLowerCase());
    return texts.get(row);
  }

  function apply() {
    const word = text.value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      const fits = (!outcome.value || row.dataset.outcome === outcome.value) && (!word || textOf(row).includes(word));
      row.hidden = !fits;
      if (!fits) close(row);
      count += fits ? 1 : 0;
    }
    table.classList.toggle("foretold", Boolean(predicted && predicted.checked));
    shown.textContent = count + " of " + rows.length;
    keep();
  }

  function keep() {
    const chosen = new URLSearchParams();
    if (outcome.value) chosen.set("outcome", outcome.value);
    if (text.value) chosen.set("text", text.value);
    if (predicted && predicted.checked) chosen.set("predicted", "");
    const open = body.querySelector("tr.detail");
    if (open) chosen.set("trial", open.previousElementSibling.dataset.trial);
    if (String(chosen) !== location.hash.slice(1)) history.replaceState(null, "", "#" + chosen);
  }

  /* Sorting: by numbers where both are such; what is empty comes last either way. Equals, such as the
     runs of one candidate, keep the order of the page. */
  const rank = new Map(rows.map((row, i) => [row, i]));
  const heads = all("thead th", table);
  function sort(index, falls) {
    const key = (row) => row.cells[index].dataset.key;
    const isEmpty = (value) => value === "" || (index > 0 && Number(value) === 0);
    rows.sort(function (a, b) {
      const [x, y] = [key(a), key(b)];
      if (isEmpty(x) !== isEmpty(y)) return isEmpty(x) ? 1 : -1;
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return (falls ? -order : order) || rank.get(a) - rank.get(b);
    });
    place(index, falls ? "descending" : "ascending");
  }
  function place(index, direction) {
    for (const row of rows) {
      const detail = detailOf(row);
      body.append(row);
      if (detail) body.append(detail);
    }
    heads.forEach((head, i) => head.setAttribute("aria-sort", i === index ? direction : "none"));
  }
  heads.forEach(function (head, index) {
    head.querySelector("button").addEventListener("click", function () {
      const [now, falls] = [head.getAttribute("aria-sort"), head.classList.contains("right")];
      if (now === "none") sort(index, falls);
      else if (now === (falls ? "descending" : "ascending")) sort(index, !falls);
      else {
        rows.sort((a, b) => rank.get(a) - rank.get(b));
        place(index, "none");
      }
    });
  });

  /* What a row opens is made when it is asked for. */
  let known = null;
  function recordOf(row) {
    known = known || JSON.parse(document.getElementById("details").textContent);
    return known[row.dataset.trial];
  }
  function detailOf(row) {
    const next = row.nextElementSibling;
    return next && next.classList.contains("detail") ? next : null;
  }
  function close(row) {
    const detail = detailOf(row);
    if (detail) detail.remove();
    row.querySelector(".open").setAttribute("aria-expanded", "false");
  }
  function made(name, content, parent) {
    const element = document.createElement(name);
    if (content) element.textContent = content;
    parent.append(element);
    return element;
  }
  function open(row) {
    const one = recordOf(row);
    if (!one) return;
    const detail = document.createElement("tr");
    detail.className = "detail";
    const cell = made("td", "", detail);
    cell.colSpan = heads.length;
    made("h4", "Settings", cell);
    made("code", one.settings, cell);
    if (one.evidence) {
      made("h4", "Evidence", cell);
      made("div", one.evidence, cell);
    }
    for (const [title, pairs] of [["Phases", one.phases], ["Where the time of a step went", one.facts]]) {
      if (!pairs.length) continue;
      made("h4", title, cell);
      const facts = made("dl", "", cell);
      for (const [name, words] of pairs) {
        made("dt", name, facts);
        made("dd", words, facts);
      }
    }
    if (one.config) {
      made("h4", "Configuration", cell);
      made("pre", one.config, cell).className = "config";
    }
    made("p", "All of it: " + one.folder, cell).className = "soft";
    row.after(detail);
    row.querySelector(".open").setAttribute("aria-expanded", "true");
  }
  function toggle(row) {
    if (detailOf(row)) close(row);
    else open(row);
    keep();
  }
  body.addEventListener("click", function (event) {
    const row = event.target.closest("tr[data-trial]");
    if (row && !String(getSelection())) toggle(row);
  });

  /* A mark of a chart, or a link, opens its trial. */
  function show(number) {
    const row = rows.find((one) => one.dataset.trial === String(number));
    if (!row) return;
    if (row.hidden) {
      outcome.value = text.value = "";
      apply();
    }
    if (!detailOf(row)) open(row);
    keep();
    row.scrollIntoView({ block: "center" });
  }
  document.addEventListener("click", function (event) {
    const mark = event.target.closest("figure [data-trial]");
    const link = event.target.closest('a[href^="#trial="]');
    if (link) event.preventDefault();
    if (link) show(link.getAttribute("href").split("=")[1]);
    else if (mark) show(mark.dataset.trial);
  });

  document.getElementById("filter").addEventListener("input", apply);
  document.getElementById("filter").addEventListener("submit", (event) => event.preventDefault());
  const asked = wanted.get("trial");
  apply();
  if (asked) show(asked);
})();
