// Draws the page from the block of JSON. Text of runs enters the document as text nodes only, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const E = data.episodes;
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = ["none", "6 3", "2 3", "8 3 2 3", "1 4", "10 4"]; // clusters differ by more than their colour
  const ROWS = 100; // of episodes, until more are asked for

  // ---- elements

  function add(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of [children].flat()) if (child !== null && child !== undefined) element.append(child);
    return element;
  }
  const h = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children.flat());
  const s = (tag, attributes, ...children) => add(document.createElementNS(SVG, tag), attributes, children.flat());
  const put = (element, ...children) => { element.replaceChildren(); return add(element, {}, children.flat()); };
  /** Names break after their punctuation, not within words. */
  const soft = (text) => h("span", {}, text.split(/(?<=[:,/_])/).flatMap((part, number) => number ? [h("wbr"), part] : [part]));
  const byId = (id) => document.getElementById(id);
  const pill = (kind, text) => h("span", { class: `pill ${kind}` }, text);
  const option = (value, text, selected) => h("option", { value, selected }, text);

  function choice(label, options, value, change) {
    const select = h("select", { onchange: () => change(select.value) }, options.map(([v, text]) => option(v, text, v === value)));
    return h("label", {}, label, select);
  }

  // ---- numbers

  const percent = (value) => (100 * value).toFixed(1);
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(100 * value).toFixed(1);
  const whole = (value) => (Math.round(100 * value) < 0 ? "−" : "+") + Math.abs(Math.round(100 * value));
  const bounds = (interval, form) => `[${interval.map(form).join(", ")}]`;
  const pValue = (p) => (p < 0.0001 ? "< 0.0001" : p < 0.1 ? p.toPrecision(2) : p.toFixed(2));
  const fixed = (value) => (value === null ? "" : value.toFixed(2));
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const plural = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  function duration(ms) {
    return ms >= 10000 ? `${(ms / 1000).toFixed(1)} s` : ms >= 100 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
  }
  /** Round numbers between low and high, about `count` of them. */
  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) found.push(value);
    return { values: found, text: (value) => value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace("-", "−") };
  }
  const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

  // ---- tables that sort

  /** columns: {title, text?, optional?, value(row), cell(row)}; a column without `value` does not sort. */
  function table(caption, columns, rows, options) {
    const { sort = null, row: attributes = () => ({}), limit = Infinity } = options || {};
    const body = h("tbody");
    const head = h("tr");
    let sorted = sort;
    const classes = (column) => [column.text ? "text" : "", column.optional ? "optional" : ""].join(" ").trim() || null;
    const more = h("button", { class: "plain", type: "button", onclick: () => { shown += ROWS; fill(); } });
    let shown = limit;
    function fill() {
      const ordered = rows.slice();
      if (sorted) {
        const { value } = columns[sorted.column];
        const missing = (one) => one === null || one === undefined;
        ordered.sort((a, b) => {
          const x = value(a), y = value(b);
          if (missing(x) || missing(y)) return missing(x) - missing(y);
          const order = typeof x === "string" ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
          return sorted.down ? -order : order;
        });
      }
      body.replaceChildren(...ordered.slice(0, shown).map((one) => h("tr", attributes(one), columns.map((column, number) =>
        add(document.createElement(number ? "td" : "th"), { class: classes(column), scope: number ? null : "row" },
          [column.cell(one)])))));
      more.hidden = rows.length <= shown;
      more.textContent = `Show more (${rows.length - shown} left)`;
      [...head.children].forEach((cell, number) => {
        if (!columns[number].value) return;
        const mine = sorted && sorted.column === number;
        cell.setAttribute("aria-sort", mine ? (sorted.down ? "descending" : "ascending") : "none");
      });
    }
    columns.forEach((column, number) => {
      const turn = () => {
        const mine = sorted && sorted.column === number;
        sorted = { column: number, down: mine ? !sorted.down : Boolean(column.down) };
        fill();
      };
      head.append(h("th", { scope: "col", class: classes(column) },
        column.value ? h("button", { type: "button", onclick: turn }, column.title) : column.title));
    });
    fill();
    return [h("table", {}, h("caption", {}, caption), h("thead", {}, head), body), more];
  }

  // ---- the answer

  const compared = new Map(data.comparisons.map((one) => [one.arm, one]));
  const first = data.arms[0];

  /** A dot with its interval on an axis from `low` to `high`. */
  function intervalBar(value, interval, low, high, kind, zero) {
    const width = 92, height = 18, x = scale(low, high, 5, width - 5);
    return s("svg", { width, height, "aria-hidden": "true" },
      zero !== undefined ? s("line", { class: "axis", x1: x(zero), x2: x(zero), y1: 1, y2: height - 1 }) : null,
      s("line", { class: kind, x1: x(interval[0]), x2: x(interval[1]), y1: 9, y2: 9, "stroke-width": 2 }),
      s("circle", { class: kind, cx: x(value), cy: 9, r: 4, "stroke-width": 2 }));
  }

  function drawAnswer() {
    const reach = Math.max(0.1, ...data.comparisons.flatMap((one) => one.interval.map(Math.abs)));
    const timed = data.arms.some((arm) => arm.time);
    const kind = (arm) => { const one = compared.get(data.arms.indexOf(arm)); return one ? one.outcome : "ref"; };
    const difference = (arm) => compared.get(data.arms.indexOf(arm));
    const columns = [
      { title: "arm", value: (arm) => arm.name, cell: (arm) => h("span", { class: "arm" }, soft(arm.name), h("span", { class: "under" }, `n = ${arm.episodes}`)) },
      { title: "success, %", value: (arm) => arm.rate, down: true, cell: (arm) => h("span", {}, percent(arm.rate),
        h("span", { class: "under" }, bounds(arm.interval, percent))) },
    ];
    if (!timed) columns.push(
      { title: "0 – 100 %", optional: true, cell: (arm) => intervalBar(arm.rate, arm.interval, 0, 1, kind(arm)) });
    if (data.comparisons.length) columns.push(
      { title: "Δ, points", value: (arm) => difference(arm) ? difference(arm).difference : null, down: true, cell: (arm) => {
        const one = difference(arm);
        return one ? h("span", {}, signed(one.difference), h("span", { class: "under" }, bounds(one.interval, signed)))
          : arm === first ? h("span", { class: "quiet" }, "reference") : "";
      } },
      { title: "worse · better", optional: true, cell: (arm) => { const one = difference(arm);
        return one ? intervalBar(one.difference, one.interval, -reach, reach, one.outcome, 0) : ""; } },
      { title: "verdict", text: true, cell: (arm) => { const one = difference(arm);
        return one ? pill(one.outcome, one.outcome) : ""; } });
    if (timed) columns.push(
      { title: "time", optional: true, value: (arm) => arm.time ? arm.time.ms : null, cell: (arm) => arm.time ? h("span", {},
        duration(arm.time.ms), h("span", { class: "under" }, first.time && first.time.what === arm.time.what && arm !== first
          ? `× ${(arm.time.ms / first.time.ms).toFixed(2)}` : arm.time.what)) : "" });
    if (data.arms.some((arm) => arm.errors)) columns.push(
      { title: "errors", value: (arm) => arm.errors, cell: (arm) => String(arm.errors || "") });
    const about = `Success rates with 95 % intervals${data.comparisons.length ? `; Δ is the difference to ${first.name}` : ""}`;
    const sure = data.comparisons.map((one) => h("li", {}, one.verdict));
    const pairings = [...new Set(data.comparisons.map((one) => one.pairing))];
    put(byId("answer"),
      h("div", { class: "answer" },
        h("div", {}, h("div", { class: "wide" }, table(about, columns, data.arms)[0]),
          sure.length ? h("div", { class: "small" }, h("ul", { class: "sure", "aria-label": "How sure" }, sure)) : null,
          pairings.map((text) => h("p", { class: "quiet small" }, `Episodes are ${text}.`)),
          data.notes.map((text) => h("p", { class: "note" }, text))),
        timed ? h("figure", { class: "panel", id: "cost" }) : null));
    if (timed) drawCost();
  }

  /** Success against time, with direct labels that do not overlap. */
  function drawCost() {
    const figure = byId("cost");
    const what = data.arms.find((arm) => arm.time).time.what;
    const arms = data.arms.filter((arm) => arm.time && arm.time.what === what);
    const inner = getComputedStyle(figure);
    const width = Math.max(220, figure.clientWidth - parseFloat(inner.paddingLeft) - parseFloat(inner.paddingRight));
    const height = 290, left = 38, right = 12, top = 12, bottom = 40;
    const seconds = Math.max(...arms.map((arm) => arm.time.ms)) >= 10000, unit = seconds ? 1000 : 1;
    const most = 1.12 * Math.max(...arms.map((arm) => Math.max(arm.time.ms, arm.time.high || 0))) / unit;
    const lows = arms.map((arm) => arm.interval[0]), highs = arms.map((arm) => arm.interval[1]);
    const low = Math.max(0, Math.floor(10 * Math.min(...lows) - 0.4) / 10), high = Math.min(1, Math.ceil(10 * Math.max(...highs) + 0.2) / 10);
    const x = scale(0, most, left, width - right), y = scale(low, high, height - bottom, top);
    const across = ticks(0, most, Math.max(3, Math.floor(width / 90))), up = ticks(100 * low, 100 * high, 5);
    const marks = arms.map((arm) => {
      const one = compared.get(data.arms.indexOf(arm)), kind = one ? one.outcome : "ref";
      const cx = x(arm.time.ms / unit), cy = y(arm.rate);
      return { arm, cx, cy, parts: [
        s("line", { class: kind, x1: cx, x2: cx, y1: y(arm.interval[0]), y2: y(arm.interval[1]), "stroke-width": 2 }),
        arm.time.low === null ? null : s("line", { class: kind, x1: x(arm.time.low / unit), x2: x(arm.time.high / unit), y1: cy, y2: cy, "stroke-width": 2 }),
        s("circle", { class: kind, cx, cy, r: 5, "stroke-width": 2 })] };
    });
    const labels = marks.slice().sort((a, b) => a.cy - b.cy);
    // Each label takes the nearest free place around its dot: no two labels overlap, and none covers a dot.
    const taken = marks.map((mark) => [mark.cx - 6, mark.cy - 6, mark.cx + 6, mark.cy + 6]);
    const overlaps = (one) => taken.some((other) => one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3]);
    const placed = labels.map((mark) => {
      const name = mark.arm.name.length > 30 ? mark.arm.name.slice(0, 29) + "…" : mark.arm.name;
      const length = name.length * 6.9, tries = [];
      for (let away = 0; away < height; away += 5) for (const dy of [-7 - away, 16 + away]) for (const side of ["start", "end"]) {
        const from = side === "start" ? mark.cx + 10 : mark.cx - 10 - length;
        const inside = clamp(from, left + 2, Math.max(left + 2, width - right - length)), ty = mark.cy + dy;
        if (ty < top + 10 || ty > height - bottom - 2) continue;
        tries.push({ x: inside, y: ty, box: [inside, ty - 11, inside + length, ty + 3], moved: Math.abs(inside - from) });
      }
      const best = tries.find((one) => !one.moved && !overlaps(one.box)) || tries.find((one) => !overlaps(one.box)) || tries[0];
      taken.push(best.box);
      return s("text", { class: "name", x: best.x, y: best.y }, name);
    });
    const words = arms.map((arm) => `${arm.name}: ${percent(arm.rate)} % at ${duration(arm.time.ms)}`).join("; ");
    figure.replaceChildren(
      h("h3", {}, "What does it cost?"),
      s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Success against time of ${what}. ${words}` },
        up.values.map((value) => [s("line", { class: "grid", x1: left, x2: width - right, y1: y(value / 100), y2: y(value / 100) }),
          s("text", { x: left - 6, y: y(value / 100) + 4, "text-anchor": "end" }, up.text(value))]).flat(),
        across.values.map((value) => s("text", { x: x(value), y: height - bottom + 17, "text-anchor": "middle" }, across.text(value))),
        s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
        s("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, `${what}, ${seconds ? "s" : "ms"}`),
        s("text", { transform: `translate(9 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "success, %"),
        marks.map((mark) => mark.parts).flat(), placed),
      h("figcaption", { class: "quiet small" }, arms.some((arm) => arm.time.low !== null)
        ? "Up and down: 95 % interval of success. Left and right: 10th to 90th percentile of the episodes' latency; the dot is the median."
        : "Up and down: 95 % interval of success."));
  }

  // ---- tuning

  function drawTuning() {
    if (!data.tunings.length) return;
    const section = byId("tuning");
    section.hidden = false;
    section.append(h("div", { class: "bar" }, h("h2", {}, "Tuning")));
    for (const tuning of data.tunings) {
      const [heading, ...rows] = tuning.rows;
      const number = (text) => (text === "" ? null : Number.isNaN(parseFloat(text)) ? text : parseFloat(text));
      const columns = heading.map((title, column) => ({
        title, text: title === "result", value: (row) => number(row[column]), cell: (row) => row[column] }));
      section.append(h("p", {}, h("strong", {}, tuning.headline)), ...tuning.notes.map((note) => h("p", { class: "note" }, note)),
        h("div", { class: "wide list" }, table("Arms in the race, which chooses; the rates above are those of the confirmation", columns, rows)[0]));
    }
  }

  // ---- tasks

  // the arm whose tasks are compared with the first's: the one that differs most, until another is chosen
  let against = data.comparisons.reduce((best, one) => best && Math.abs(best.difference) >= Math.abs(one.difference) ? best : one, null)?.arm;

  function drawTasks() {
    if (data.tasks.length < 2) return;
    const section = byId("tasks");
    section.hidden = false;
    const one = compared.get(against);
    const contrast = (task) => (one ? one.tasks[data.tasks[task]] : undefined);
    const reach = one ? Math.max(0.1, ...Object.values(one.tasks).flatMap((task) => task.interval.map(Math.abs))) : 1;
    const outcome = (task) => (contrast(task).interval[0] > 0 ? "better" : contrast(task).interval[1] < 0 ? "worse" : "unclear");
    const columns = [{ title: "task", value: (task) => data.tasks[task], cell: (task) => data.tasks[task] }];
    data.arms.forEach((arm, number) => {
      if (data.arms.length > 3 && number && number !== against) return; // more than three arms do not fit beside the difference
      columns.push({ title: h("span", {}, soft(arm.name), ", %"), down: true, value: (task) => arm.tasks[task] ? arm.tasks[task].rate : null,
        cell: (task) => { const rate = arm.tasks[task]; return rate ? h("span", {}, percent(rate.rate),
          h("span", { class: "under" }, bounds(rate.interval, (v) => (100 * v).toFixed(0)), h("span", { class: "optional" }, ` n = ${rate.episodes}`))) : "–"; } });
    });
    if (one) columns.push(
      { title: "Δ, points", down: true, value: (task) => contrast(task) ? contrast(task).difference : null, cell: (task) => contrast(task)
        ? h("span", {}, signed(contrast(task).difference), h("span", { class: "under" }, bounds(contrast(task).interval, whole))) : "–" },
      { title: "worse · better", optional: true, cell: (task) => contrast(task)
        ? intervalBar(contrast(task).difference, contrast(task).interval, -reach, reach, outcome(task), 0) : "" },
      { title: "gained / lost", optional: true, value: (task) => contrast(task) && contrast(task).discordant ? contrast(task).discordant[0] - contrast(task).discordant[1] : null,
        down: true, cell: (task) => contrast(task) && contrast(task).discordant ? contrast(task).discordant.join(" / ") : "" },
      { title: "p, Holm", optional: true, value: (task) => contrast(task) ? contrast(task).p_holm : null,
        cell: (task) => contrast(task) ? pValue(contrast(task).p_holm) : "" });
    const others = data.comparisons.map((other) => [String(other.arm), data.arms[other.arm].name]);
    put(section,
      h("div", { class: "bar" }, h("h2", { id: "tasks-title" }, "Tasks"),
        others.length > 1 ? choice(`compare with ${first.name}`, others, String(against), (value) => {
          against = Number(value); drawTasks(); byId("tasks").querySelector("select").focus(); }) : null),
      h("div", { class: "wide" }, table(one ? `${data.arms[against].name} against ${first.name}, 95 % intervals` : "95 % intervals",
        columns, data.tasks.map((_, number) => number))[0]));
  }

  // ---- sections of the caller

  function drawSections() {
    put(byId("sections"), data.sections.map((one) => h("section", {}, h("div", { class: "bar" }, h("h2", {}, one.title)),
      one.image ? h("img", { src: one.image, alt: one.alt }) : null, one.text.map((text) => h("p", {}, text)),
      one.code ? h("pre", { tabindex: "0", "aria-label": "Command" }, one.code) : null)));
  }

  // ---- episodes

  const change = new Map(); // place of an episode → "gained" or "lost", compared with the first arm
  for (const one of data.comparisons) for (const [, b] of one.flips) change.set(b, E.success[b] ? "gained" : "lost");
  const filter = { show: change.size ? "changed" : "all", arm: "", task: "", outcome: "" };
  const outcomeOf = (place) => (E.error[place] !== null ? "error" : E.success[place] ? "success" : "failure");
  const nameOf = (place) => `${data.tasks[E.task[place]]} #${E.episode[place]}${repeated ? `.${E.repeat[place]}` : ""}`;
  const repeated = E.repeat.some((repeat) => repeat > 0);
  const places = E.arm.map((_, place) => place);
  let opened = null;

  function drawEpisodes() {
    const section = byId("episodes");
    const refill = (name) => (value) => { filter[name] = value; fillEpisodes(); };
    put(section,
      h("div", { class: "bar" }, h("h2", { id: "episodes-title" }, "Episodes"),
        change.size ? choice("show", [["changed", `changed (${change.size})`], ["all", `all (${places.length})`]], filter.show, refill("show")) : null,
        data.arms.length > 1 ? choice("arm", [["", "all"], ...data.arms.map((arm, number) => [String(number), arm.name])], "", refill("arm")) : null,
        data.tasks.length > 1 ? choice("task", [["", "all"], ...data.tasks.map((task, number) => [String(number), task])], "", refill("task")) : null,
        choice("outcome", [["", "all"], ["success", "success"], ["failure", "failure"], ["error", "error"],
          ...(change.size ? [["gained", "gained"], ["lost", "lost"]] : [])], "", refill("outcome"))),
      change.size ? h("p", { class: "quiet small" }, `Changed: solved by an arm and not by ${first.name} (gained), or the reverse (lost), from the same initial state.`) : null,
      data.comparisons.length && !data.comparisons.some((one) => one.paired)
        ? h("p", { class: "note" }, "Episodes are not paired, so which of them changed is not known.") : null,
      h("p", { class: data.stored.episodes && data.stored.shown === data.stored.episodes ? "quiet small" : "note" }, roundsNote()),
      h("div", { class: "two" },
        h("div", { id: "list", class: "list", tabindex: "0", role: "region", "aria-label": "List of episodes" }),
        h("div", { id: "viewer", class: "panel viewer", role: "region", "aria-label": "Rounds of an episode", onkeydown: keys })));
    byId("list").addEventListener("keydown", (event) => {
      const all = [...byId("list").querySelectorAll(".open")], at = all.indexOf(document.activeElement);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
      if (at < 0 || to === undefined || !all[to]) return;
      event.preventDefault();
      all[to].focus();
    });
    fillEpisodes();
    const several = (place) => data.rounds[place] && data.rounds[place].shape[1] > 1; // with one candidate there is little to see
    const filmed = (place) => data.films[place] && several(place);
    const begin = places.find(filmed) ?? [...change.keys()].find(several) ?? places.find(several) ?? places.find((place) => data.rounds[place]);
    if (begin === undefined) emptyViewer(); else open(begin, false);
  }

  function roundsNote() {
    const { episodes, shown } = data.stored, films = Object.keys(data.films).length;
    if (!episodes) return data.arms.some((arm) => arm.tool === "keystone")
      ? "These runs hold no rounds. `keystone eval --keep-rounds` keeps them: candidates, clusters and choices then appear here."
      : "Results of lerobot-eval and vla-eval hold no rounds. `keystone eval --keep-rounds` keeps them.";
    const some = shown < episodes ? `Rounds of ${shown} of ${plural(episodes, "episode")} are in this page, changed ones first; the others would make it too large. `
      : "";
    const filmed = films ? ` ${plural(films, "episode")} marked ▶ can also be watched.` : "";
    return `${some}Episodes with rounds are marked ●: choose one and step through it with the slider or the arrow keys.${filmed}`;
  }

  /** Why an episode has no rounds here. */
  function missing(place) {
    const { tool } = data.arms[E.arm[place]];
    if (tool !== "keystone") return `Results of ${tool} hold no rounds.`;
    if (data.left_out.includes(place)) return "Its rounds were left out to keep this page small: `keystone report RUN --arms …` with fewer arms has room for more.";
    if (E.error[place] !== null) return "It ended with an error, so no rounds were kept.";
    return "Its rounds were not kept: `keystone eval --keep-rounds` keeps them.";
  }

  function mark(place) {
    const [sign, label] = data.films[place] ? ["▶ ", "with rounds and a film"] : ["● ", "with rounds"];
    return data.rounds[place] ? h("span", { role: "img", "aria-label": label }, sign) : null;
  }

  function fillEpisodes() {
    const wanted = places.filter((place) => (filter.show !== "changed" || change.has(place))
      && (filter.arm === "" || E.arm[place] === Number(filter.arm)) && (filter.task === "" || E.task[place] === Number(filter.task))
      && (filter.outcome === "" || outcomeOf(place) === filter.outcome || change.get(place) === filter.outcome));
    const columns = [
      { title: "episode", value: nameOf, cell: (place) => h("button", { class: "open", type: "button", "data-place": place,
        onclick: (event) => { event.stopPropagation(); open(place, true); } }, mark(place), soft(nameOf(place))) },
      { title: "outcome", text: true, value: (place) => change.get(place) || outcomeOf(place),
        cell: (place) => change.has(place) ? pill(change.get(place), change.get(place)) : pill(outcomeOf(place), outcomeOf(place)) },
    ];
    if (data.arms.length > 1) columns.splice(1, 0, { title: "arm", text: true, value: (place) => data.arms[E.arm[place]].name, cell: (place) => soft(data.arms[E.arm[place]].name) });
    if (E.steps.some(Boolean)) columns.push({ title: "steps", optional: true, value: (place) => E.steps[place], cell: (place) => String(E.steps[place]) });
    if (E.dispersion.some((value) => value !== null)) columns.push(
      { title: "consensus", optional: true, value: (place) => E.consensus[place], cell: (place) => fixed(E.consensus[place]) },
      { title: "dispersion", optional: true, down: true, value: (place) => E.dispersion[place], cell: (place) => fixed(E.dispersion[place]) });
    byId("list").replaceChildren(...table(plural(wanted.length, "episode"), columns, wanted, { limit: ROWS,
      row: (place) => ({ class: place === opened ? "on" : null, "data-place": place, onclick: () => open(place, true) }) }));
  }

  // ---- rounds of one episode

  let view = null; // the open episode: its packed rounds, decoded values, current round and axes
  const axes = { x: "0", y: "1", sum: false };
  let player = null;

  const emptyViewer = () => byId("viewer").replaceChildren(h("p", { class: "quiet" }, "Choose an episode."));

  async function decode(packed) {
    const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer()); // low bytes, then high bytes
    const [R, K, T, D] = packed.shape;
    const values = new Float32Array(R * K * T * D);
    const step = packed.low.map((low, d) => (packed.high[d] - low) / packed.levels);
    for (let chunk = 0; chunk < R * K; chunk++) for (let d = 0; d < D; d++) {
      let level = 0;
      for (let t = 0; t < T; t++) {
        const place = (chunk * T + t) * D + d;
        const folded = planes[place] | (planes[values.length + place] << 8);
        level += folded & 1 ? -(folded + 1) / 2 : folded / 2;
        values[place] = packed.low[d] + level * step[d];
      }
    }
    return values;
  }

  async function open(place, focus) {
    opened = place;
    stop();
    for (const row of byId("list").querySelectorAll("tr[data-place]")) row.classList.toggle("on", Number(row.dataset.place) === place);
    const viewer = byId("viewer"), packed = data.rounds[place];
    const same = places.filter((other) => other !== place && E.task[other] === E.task[place] && E.episode[other] === E.episode[place] && E.repeat[other] === E.repeat[place]);
    const title = h("h3", { tabindex: "-1", id: "episode-title" }, `${nameOf(place)}, ${data.arms[E.arm[place]].name} `, pill(outcomeOf(place), outcomeOf(place)));
    const parts = [title];
    if (same.length) parts.push(h("div", { class: "same" }, h("span", { class: "quiet" }, "the same episode with"),
      same.map((other) => h("button", { class: "plain", type: "button", onclick: () => open(other, true) }, `${data.arms[E.arm[other]].name}: ${outcomeOf(other)}`))));
    if (E.error[place] !== null) parts.push(h("pre", { tabindex: "0", "aria-label": "Error" }, E.errors[E.error[place]]));
    view = null;
    if (!packed) {
      viewer.replaceChildren(...parts, h("p", { class: "note" }, missing(place)));
    } else {
      const values = await decode(packed);
      if (opened !== place) return; // another one was opened meanwhile
      view = { place, packed, values, at: 0 };
      const D = packed.shape[3];
      if (Number(axes.x) >= D) axes.x = "0";
      if (Number(axes.y) >= D) axes.y = String(D - 1);
      if (D === 1) { axes.x = "step"; axes.y = "0"; }
      const names = packed.low.map((_, d) => [String(d), `dimension ${d}`]);
      const film = data.films[place];
      const slider = h("input", { type: "range", id: "slider", min: 0, max: packed.kept.length - 1, value: 0, step: 1, "aria-label": "Round", oninput: () => go(Number(slider.value)) });
      viewer.replaceChildren(...parts,
        h("div", { class: "bar" },
          choice("across", [["step", "step of the chunk"], ...names], axes.x, (value) => { axes.x = value; drawRound(); }),
          choice("up", names, axes.y, (value) => { axes.y = value; drawRound(); }),
          h("label", {}, h("input", { type: "checkbox", checked: axes.sum, onchange: (event) => { axes.sum = event.target.checked; drawRound(); } }), "sum of steps (delta actions)")),
        ...(film ? [h("figure", { class: "film" }, h("img", { id: "film" }),
          film.notes.map((note) => h("figcaption", { class: "quiet small" }, note)))] : []),
        h("div", { id: "paths" }), h("ul", { id: "key", class: "key", "aria-label": "Clusters" }),
        h("div", { class: "scrub" },
          h("button", { class: "plain", type: "button", "aria-label": "Previous round", onclick: () => go(view.at - 1) }, "◀"),
          slider,
          h("button", { class: "plain", type: "button", "aria-label": "Next round", onclick: () => go(view.at + 1) }, "▶"),
          h("button", { class: "plain", type: "button", id: "play", onclick: play }, "Play")),
        h("p", { class: "now", id: "now", "aria-live": "polite" }), h("div", { class: "strips", id: "strips" }));
      drawRound();
    }
    if (focus) {
      title.focus({ preventScroll: true });
      if (matchMedia("(max-width: 900px)").matches) viewer.scrollIntoView({ block: "start" });
    }
  }

  function go(at) {
    if (!view) return;
    view.at = clamp(at, 0, view.packed.kept.length - 1);
    byId("slider").value = view.at;
    drawRound();
  }
  /** The last frame of the film that is not after an environment step. */
  const frameAt = (film, step) => Math.max(0, film.step.findLastIndex((one) => one <= step));
  function showFrame(film, number) {
    add(byId("film"), { src: film.images[number], alt: `The environment at step ${film.step[number]}, replayed` });
  }
  function stop() { clearInterval(player); player = null; if (byId("play")) byId("play").textContent = "Play"; }
  function play() {
    if (player) return stop();
    if (view.at === view.packed.kept.length - 1) go(0);
    byId("play").textContent = "Stop";
    const { packed, place } = view, film = data.films[place];
    if (!film) {
      player = setInterval(() => { go(view.at + 1); if (view.at === packed.kept.length - 1) stop(); }, 400);
      return;
    }
    let number = frameAt(film, packed.step[packed.kept[view.at]]);
    player = setInterval(() => {
      const at = packed.kept.findLastIndex((round) => packed.step[round] <= film.step[number]);
      if (at !== view.at) go(at);
      showFrame(film, number);
      if (++number === film.step.length) stop();
    }, 120);
  }
  function keys(event) {
    if (/SELECT|INPUT/.test(event.target.tagName) || !view) return; // they have arrows of their own
    const to = { ArrowLeft: view.at - 1, ArrowRight: view.at + 1, Home: 0, End: Infinity }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    go(to);
  }

  /** (T,) coordinates of a candidate along an axis. */
  function along(axis, round, candidate) {
    const [, K, T, D] = view.packed.shape, found = [];
    let sum = 0;
    for (let t = 0; t < T; t++) {
      const value = axis === "step" ? t : view.values[((round * K + candidate) * T + t) * D + Number(axis)];
      sum += value;
      found.push(axes.sum && axis !== "step" ? sum : value);
    }
    return found;
  }

  /** Range of an axis over all rounds of the episode, so that it stands still while scrubbing. */
  function range(axis) {
    const name = `${axis} ${axes.sum}`;
    view.ranges = view.ranges || {};
    if (!view.ranges[name]) {
      let low = Infinity, high = -Infinity;
      view.packed.labels.forEach((labels, round) => labels.forEach((label, candidate) => {
        if (label >= 0) for (const value of along(axis, round, candidate)) { low = Math.min(low, value); high = Math.max(high, value); }
      }));
      const room = 0.04 * (high - low) || 0.5;
      view.ranges[name] = Number.isFinite(low) ? [low - room, high + room] : [0, 1];
    }
    return view.ranges[name];
  }

  function innerWidth(element) { return Math.max(240, element.clientWidth); }

  function drawRound() {
    if (!view) return;
    const { packed, at } = view, box = byId("paths");
    const labels = packed.labels[at], chosen = packed.index[at], round = packed.kept[at], film = data.films[view.place];
    if (film) showFrame(film, frameAt(film, packed.step[round]));
    const width = innerWidth(box), height = Math.min(340, Math.max(230, 0.66 * width)), left = 46, right = 10, top = 8, bottom = 38;
    const [xLow, xHigh] = range(axes.x), [yLow, yHigh] = range(axes.y);
    const x = scale(xLow, xHigh, left, width - right), y = scale(yLow, yHigh, height - bottom, top);
    const across = ticks(xLow, xHigh, Math.max(3, width / 100)), up = ticks(yLow, yHigh, 5);
    const curve = (candidate) => {
      const xs = along(axes.x, at, candidate), ys = along(axes.y, at, candidate);
      return { d: xs.map((value, t) => `${t ? "L" : "M"}${x(value).toFixed(1)} ${y(ys[t]).toFixed(1)}`).join(""), 
        from: [x(xs[0]), y(ys[0])], to: [x(xs[xs.length - 1]), y(ys[ys.length - 1])] };
    };
    const colour = (label) => Math.min(label, DASHES.length - 1);
    const line = (candidate, extra) => s("path", { class: `path c${colour(labels[candidate])}`, "stroke-dasharray": DASHES[colour(labels[candidate])], d: curve(candidate).d, ...extra });
    const others = labels.map((label, candidate) => [label, candidate]).filter(([label, candidate]) => label >= 0 && candidate !== chosen).sort((a, b) => b[0] - a[0]);
    const best = labels[chosen] >= 0 ? curve(chosen) : null;
    const axis = (name) => (name === "step" ? "step of the chunk" : `dimension ${name}${axes.sum ? ", summed" : ""}`);
    const word = packed.synthesised ? "nearest to the executed average" : "executed";
    box.replaceChildren(s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${plural(labels.length, "candidate")} of round ${round + 1} as paths, ${axis(axes.x)} against ${axis(axes.y)}; candidate ${chosen} is ${word}` },
    up.values.map((value) => [s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }), s("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, up.text(value))]).flat(),
    across.values.map((value) => [s("line", { class: "grid", x1: x(value), x2: x(value), y1: top, y2: height - bottom }), s("text", { x: x(value), y: height - bottom + 16, "text-anchor": "middle" }, across.text(value))]).flat(),
    s("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, `${axis(axes.x)}, policy's units`),
    s("text", { transform: `translate(10 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, axis(axes.y)),
    others.map(([, candidate]) => line(candidate, { "data-candidate": candidate, opacity: 0.8 })),
    best ? [s("path", { class: "path halo", d: best.d }), s("path", { class: "path ink", d: best.d, id: "chosen" }),
      s("circle", { class: "ref", cx: best.from[0], cy: best.from[1], r: 4, "stroke-width": 2 }),
      s("circle", { class: "fill-ink", cx: best.to[0], cy: best.to[1], r: 5 })] : null));

    const sizes = new Map();
    for (const label of labels) sizes.set(label, (sizes.get(label) || 0) + 1);
    const swatch = (attributes) => s("svg", { width: 26, height: 8, "aria-hidden": "true" }, s("path", { d: "M1 4H25", ...attributes }));
    byId("key").replaceChildren(
      h("li", {}, swatch({ class: "path ink" }), `${word}, from ○ to ●`),
      ...[...sizes].sort((a, b) => a[0] - b[0]).map(([label, size]) => label < 0 ? h("li", {}, `${size} dropped, not finite`)
        : h("li", {}, swatch({ class: `path c${colour(label)}`, "stroke-dasharray": DASHES[colour(label)] }),
          sizes.size === 1 ? plural(size, "candidate") : `cluster ${label + 1}: ${plural(size, "candidate")}`)));
    const numbers = [["consensus", packed.consensus[round]], ["dispersion", packed.dispersion[round]]].filter(([, value]) => value !== null);
    const text = `Round ${round + 1} of ${packed.step.length}, step ${packed.step[round]}: candidate ${chosen} of ${labels.length} ${packed.synthesised ? "is nearest to the executed average" : "was executed"}`
      + (labels.length > 1 ? `; ${numbers.map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ")}` : "");
    byId("now").textContent = text;
    byId("slider").setAttribute("aria-valuetext", text);
    byId("strips").replaceChildren(...(labels.length > 1 ? numbers.map(([name]) => strip(name, packed[name], round)) : []),
      ...(packed.alarm ? [strip(`alarm score (${data.alarm}; dashed: limit)`, packed.alarm, round, packed.limit)] : []));
  }

  /** One statistic over the rounds of the episode, 0 to 1, or an alarm's score with its limits; a click goes to the nearest round. */
  function strip(name, values, round, limits) {
    const all = limits ? [...values, ...limits].filter((value) => value !== null) : [0, 1];
    const low = Math.min(0, ...all), high = Math.max(...all) > low ? Math.max(...all) : low + 1;
    const width = innerWidth(byId("strips")), height = 66, left = 46, right = 10, top = 16, bottom = 12;
    const x = scale(0, Math.max(1, values.length - 1), left, width - right), y = scale(low, high, height - bottom, top);
    const points = values.map((value, place) => [place, value]).filter(([, value]) => value !== null);
    const jump = (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      const wanted = ((event.clientX - box.left) * (width / box.width) - left) / (width - left - right) * (values.length - 1);
      const { kept } = view.packed;
      go(kept.reduce((best, place, number) => Math.abs(place - wanted) < Math.abs(kept[best] - wanted) ? number : best, 0));
    };
    return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", onclick: jump, "data-strip": name,
      "aria-label": `${name} over the rounds: ${points.map(([, value]) => value.toFixed(2)).join(", ")}` },
    [low, high].map((value) => [s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }), s("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(2))))]).flat(),
    limits ? s("polyline", { class: "axis", fill: "none", "stroke-dasharray": "6 3", points: limits.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }) : null,
    s("text", { x: left, y: 10 }, `${name} over the rounds`),
    s("polyline", { class: "series", points: points.map(([place, value]) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }),
    s("line", { class: "cursor", x1: x(round), x2: x(round), y1: top - 3, y2: height - bottom + 3 }),
    values[round] === null ? null : s("circle", { class: "dot", cx: x(round), cy: y(values[round]), r: 4 }));
  }

  // ---- all of it

  const sources = [...new Set(data.arms.map((arm) => arm.source))];
  byId("about").textContent = `KeyStone ${data.version} · ${sources.slice(0, 3).join(", ")}${sources.length > 3 ? ` and ${sources.length - 3} more` : ""} · `
    + `${plural(places.length, "episode")}, ${plural(data.tasks.length, "task")}, ${plural(data.arms.length, "arm")}`;
  drawAnswer();
  drawTuning();
  drawTasks();
  drawSections();
  drawEpisodes();
  let waiting = null, before = document.documentElement.clientWidth;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === before) return;
    before = document.documentElement.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (byId("cost")) drawCost(); drawRound(); }, 120);
  });
})();
