// Keeps the page fresh from /status.json. The page is complete without this; nothing is fetched from anywhere else.
"use strict";
(() => {
  const PERIOD_MS = 2000;
  const WINDOW_NS = 10e9;
  const STAGE = "total";
  let earlier = [];

  const cell = (text, kind) => {
    const td = document.createElement("td");
    td.textContent = text;
    if (kind) td.className = kind;
    return td;
  };
  const put = (id, text) => { document.getElementById(id).textContent = text; };

  const bytes = (n) => {
    if (n < 1024) return n + " B";
    const units = ["KiB", "MiB", "GiB", "TiB"];
    let value = n, unit = -1;
    do { value /= 1024; unit += 1; } while (value >= 1024 && unit < units.length - 1);
    return value.toFixed(value < 10 ? 1 : 0) + " " + units[unit];
  };
  const time = (us) => {
    if (us === null) return "–";
    if (us < 1000) return us.toFixed(0) + " µs";
    return us < 1e6 ? (us / 1e3).toFixed(us < 1e4 ? 2 : 1) + " ms" : (us / 1e6).toFixed(2) + " s";
  };
  const lasting = (ms) => {
    const s = Math.floor(ms / 1000), d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24;
    const m = Math.floor(s / 60) % 60;
    return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
  };
  const nextTry = (ms) => `next try at ${new Date(ms).toISOString().slice(0, 19).replace("T", " ")}Z`;

  const quantile = (counts, bounds, fraction) => {
    const rank = fraction * counts.reduce((sum, count) => sum + count, 0);
    let seen = 0;
    for (let i = 0; i < counts.length; i += 1) {
      if (counts[i] && seen + counts[i] >= rank) {
        const low = i ? bounds[i - 1] : 0, high = i < bounds.length ? bounds[i] : low;
        return low + (high - low) * (rank - seen) / counts[i];
      }
      seen += counts[i];
    }
    return null;
  };
  const recent = (now, model) => {
    const before = earlier[0];
    const old = before && before.models.find((m) => m.name === model.name && m.version === model.version);
    if (!old) return null;
    const was = old.stages[STAGE].counts;
    const counts = model.stages[STAGE].counts.map((count, i) => count - (was[i] || 0));
    const total = counts.reduce((sum, count) => sum + count, 0);
    return { counts, rate: total / ((now.now_ns - before.now_ns) / 1e9), total };
  };

  const modelRows = (now, model, workers) => {
    const row = document.createElement("tr");
    const life = model.stages[STAGE];
    const lately = recent(now, model);
    const moving = lately && lately.total > 0;
    const p = (fraction, whole) => time(moving ? quantile(lately.counts, now.bounds_us, fraction) : whole);
    const shade = moving ? "number" : "number quiet";
    const state = cell("");
    const badge = document.createElement("span");
    badge.className = "badge " + model.state;
    badge.textContent = model.state;
    state.append(badge);
    const mine = model.workers.map((id) => workers.get(id)).filter(Boolean);
    row.append(
      cell(model.name, "name"), cell(model.version || "–", "number"), state,
      cell(lately ? lately.rate.toFixed(lately.rate < 10 ? 1 : 0) + "/s" : "–", "number"),
      cell(model.requests.success, "number"), cell(p(0.5, life.p50_us), shade), cell(p(0.99, life.p99_us), shade),
      cell(model.queued, "number"), cell(model.running, "number"),
      cell(model.batch_mean === null ? "–" : model.batch_mean.toFixed(2), "number"),
      cell(mine.map((w) => `${w.pid} (${bytes(w.memory_bytes)})`).join(", ") || "–"));
    if (!model.reason) return [row];
    const reason = document.createElement("tr");
    reason.className = "reason";
    const text = cell(model.reason + (model.next_try_ms ? "; " + nextTry(model.next_try_ms) : ""));
    text.colSpan = row.children.length;
    reason.append(text);
    return [row, reason];
  };

  const show = (now) => {
    const workers = new Map(now.workers.map((w) => [w.worker, w]));
    put("uptime", "up " + lasting(now.uptime_ms));
    put("accepting", now.accepting ? "" : "draining: new requests are refused");
    put("trouble", now.store ? now.store.trouble : "");
    put("ready", `${now.models.filter((m) => m.state === "READY").length} of ${now.models.length}`);
    put("queued", now.queued_requests);
    put("running", now.running_requests);
    put("workers", now.workers.filter((w) => w.pid > 0).length);
    put("arena", `${bytes(now.arena_used_bytes)} of ${bytes(now.arena_limit_bytes)}`);
    const memory = now.residency;
    put("problems", memory.problems.join("; "));
    put("residency", bytes(memory.used_bytes) +
      (memory.budget_bytes > 0 && memory.budget_bytes < 2 ** 62 ? " of " + bytes(memory.budget_bytes) : ""));
    document.getElementById("models").replaceChildren(...now.models.flatMap((m) => modelRows(now, m, workers)));
  };

  const remember = (now) => {
    if (earlier.length && earlier[0].started_ns !== now.started_ns) earlier = [];
    earlier.push(now);
    while (earlier.length > 2 && now.now_ns - earlier[1].now_ns >= WINDOW_NS) earlier.shift();
  };

  const refresh = async () => {
    const begun = performance.now();
    if (!document.hidden) {
      try {
        const answer = await fetch("status.json", { cache: "no-store" });
        const now = await answer.json();
        show(now);
        remember(now);
        put("fresh", "refreshed " + new Date().toLocaleTimeString());
      } catch (problem) {
        put("fresh", "not reachable since then; still trying");
      }
    }
    // a slow answer means a large or busy appliance: ask less often
    setTimeout(refresh, Math.max(PERIOD_MS, 20 * (performance.now() - begun)));
  };
  refresh();
})();
