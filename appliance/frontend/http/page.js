// Keeps the page fresh: fetches it anew and takes over its main part. Where no answer comes the last picture stays, grey.
"use strict";
(() => {
  const PERIOD_MS = 2000;
  const PATIENCE_MS = 5000;
  const live = document.getElementById("live");
  const stale = document.getElementById("stale");
  let answered = Date.now();

  const lasting = (ms) => {
    const s = Math.round(ms / 1000);
    return s < 120 ? `${s} s` : s < 7200 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h`;
  };

  // What a person has before them stays: how far a table is scrolled, what has the focus.
  const show = (fresh) => {
    const scrolled = [...live.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    live.replaceChildren(...fresh.childNodes);
    live.querySelectorAll(".scroll").forEach((each, i) => { each.scrollLeft = scrolled[i] || 0; });
    if (focused) [...live.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  };

  const age = (why) => {
    document.body.classList.toggle("old", Boolean(why));
    stale.hidden = !why;
    if (why) stale.textContent = `${why}. This is what it showed ${lasting(Date.now() - answered)} ago.`;
  };

  const refresh = async () => {
    const begun = performance.now();
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
        if (!answer.ok) throw new Error(`The appliance answers with ${answer.status} ${answer.statusText}`);
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        show(page.getElementById("live"));
        answered = Date.now();
        document.getElementById("fresh").textContent = "refreshed " + new Date().toLocaleTimeString();
        age("");
      } catch (problem) {
        age(problem.message.startsWith("The appliance") ? problem.message : "The appliance does not answer");
      }
    }
    // A slow answer means a large or busy appliance: ask less often.
    setTimeout(refresh, Math.max(PERIOD_MS, Math.min(20 * (performance.now() - begun), 30000)));
  };
  setTimeout(refresh, PERIOD_MS);
})();
