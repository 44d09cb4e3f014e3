// Conversations lie folded up as text: a page of thousands opens at once, and each is built when it is opened.
const list = document.getElementById("rollouts"), rows = [...list.children];
const search = document.getElementById("search"), order = document.getElementById("order");
const chips = [...document.querySelectorAll("button[data-show]")];
const signs = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" };
const pages = [...document.querySelectorAll("a[data-page]")].map((link) => [link, link.getAttribute("href")]);
const elsewhere = document.getElementById("elsewhere"), count = document.getElementById("count"), MOST = 200;
// The further pages are asked in a hidden frame, one after another, once somebody searches: together they may not fit
// into memory. A file has no origin; a site asks only itself.
const parts = [...document.querySelectorAll("a[data-part]")].map((link) => ({ href: link.getAttribute("href") }));
const isFile = location.protocol === "file:", to = isFile ? "*" : location.origin;
const NO_SCRIPT_MS = 5000, NO_PAGE_MS = 60000; // how long to wait for a page that has loaded, or has not
let shown = "", timer = 0, own = 0, asked = null, patience = 0;
function textOf(row) {
  const text = row.firstChild.textContent + " " + row.lastChild.textContent.replace(/<[^>]*>/g, " ");
  return text.replace(/&(lt|gt|quot|amp|#x27);/g, (sign) => signs[sign]).toLowerCase();
}
function apply() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  own = 0;
  for (const row of rows) {
    let fits = !shown || row.classList.contains(shown);
    if (fits && words.length) {
      row.text ??= textOf(row);
      fits = words.every((word) => row.text.includes(word));
    }
    row.hidden = !fits;
    own += fits;
  }
  for (const [link, href] of pages) link.href = href + (words.length ? "#?" + encodeURIComponent(search.value) : "");
  count.textContent = `${own} of ${rows.length}`;
  elsewhere.replaceChildren();
  for (const part of parts) part.found = null;
  if (!parts.length || (!words.length && !shown)) close();
  else if (asked) post();
  else ask();
}
function ask() {
  tell();
  asked = parts.find((part) => !part.found);
  if (!asked) return;
  asked.isReady = false;
  asked.frame = document.createElement("iframe");
  asked.frame.hidden = true;
  asked.frame.src = asked.href;
  asked.frame.addEventListener("load", () => { if (asked && !asked.isReady) wait(NO_SCRIPT_MS); });
  wait(NO_PAGE_MS);
  document.body.append(asked.frame);
}
function wait(milliseconds) {
  clearTimeout(patience);
  patience = setTimeout(next, milliseconds, { n: 0, total: 0, rows: [], isMissing: true });
}
function post() {
  tell();
  if (!asked.isReady) return;
  asked.frame.contentWindow.postMessage({ search: search.value, shown }, to);
  wait(NO_PAGE_MS);
}
function next(found) {
  asked.found = found;
  close();
  ask();
}
function close() {
  clearTimeout(patience);
  asked?.frame.remove();
  asked = null;
}
function tell() {
  const known = parts.filter((part) => part.found);
  const sum = (name) => known.reduce((before, { found }) => before + found[name], 0);
  const missing = known.filter(({ found }) => found.isMissing).map(({ href }) => decodeURIComponent(href));
  const progress = `so far, searching page ${known.length + 2} of ${parts.length + 1} …`;
  const where = known.length < parts.length ? progress : "in all pages";
  const without = missing.length ? `, but ${missing.join(", ")} cannot be read` : "";
  count.textContent = `${own + sum("n")} of ${rows.length + sum("total")} ${where}${without}`;
  elsewhere.replaceChildren(...known.flatMap(hits));
}
function hits({ href, found }) {
  const links = found.rows.map(([id, kind, cells]) => {
    const link = document.createElement("a");
    link.className = "rollout hit " + kind;
    link.href = href + "#" + encodeURIComponent(id);
    for (const [name, text] of cells) {
      const cell = link.appendChild(document.createElement("span"));
      cell.className = name;
      cell.textContent = text;
    }
    return link;
  });
  if (found.n > links.length) {
    const rest = document.createElement("a");
    rest.className = "hit more";
    rest.href = href + "#?" + encodeURIComponent(search.value);
    rest.textContent = `${found.n - links.length} more in ${decodeURIComponent(href)}`;
    links.push(rest);
  }
  return links;
}
function answer({ data, source, origin }) {
  if (!isFile && origin !== location.origin) return;
  if (asked && asked.frame.contentWindow === source) {
    asked.isReady = true;
    if (!data.found || data.search !== search.value || data.shown !== shown) post();
    else next(data.found);
  } else if (source === parent && parent !== window) {
    search.value = data.search;
    shown = data.shown;
    apply();
    const cells = (row) => [...row.firstChild.children].map((cell) => [cell.className, cell.textContent]);
    const kind = (row) => row.classList[1];
    const first = rows.filter((row) => !row.hidden).slice(0, MOST).map((row) => [row.id, kind(row), cells(row)]);
    source.postMessage({ ...data, found: { n: own, total: rows.length, rows: first } }, to);
  }
}
addEventListener("message", answer);
if (parent !== window) parent.postMessage({}, to);
function sort() {
  const key = order.value, number = (row) => Number(row.dataset[key] ?? "-Infinity");
  list.append(...(key === "order" ? rows : [...rows].sort((a, b) => number(b) - number(a))));
}
function unfold(row) {
  if (row.querySelector(".body")) return;
  const body = document.createElement("div");
  body.className = "body";
  body.innerHTML = row.lastChild.textContent; // made by Outrider, with all that others said escaped
  row.insertBefore(body, row.lastChild);
}
search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(apply, 120); });
order.addEventListener("change", sort);
for (const chip of chips) chip.addEventListener("click", () => {
  shown = shown === chip.dataset.show ? "" : chip.dataset.show;
  for (const other of chips) other.setAttribute("aria-pressed", String(other.dataset.show === shown));
  apply();
});
list.addEventListener("toggle", ({ target }) => {
  if (!target.open || target.parentElement !== list) return;
  unfold(target);
  history.replaceState(null, "", "#" + encodeURIComponent(target.id));
}, true);
function follow() {
  if (location.hash.startsWith("#?")) { // a search that goes on from another page
    search.value = decodeURIComponent(location.hash.slice(2));
    apply();
    return;
  }
  const linked = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (linked) { unfold(linked); linked.open = true; linked.scrollIntoView(); }
}
addEventListener("hashchange", follow);
follow();
apply();
