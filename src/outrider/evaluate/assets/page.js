// Conversations lie folded up as text: a page of thousands opens at once, and each is built when it is opened.
const list = document.getElementById("rollouts"), rows = [...list.children];
const search = document.getElementById("search"), order = document.getElementById("order");
const chips = [...document.querySelectorAll("button[data-show]")];
const signs = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" };
let shown = "", timer = 0;
function textOf(row) {
  const text = row.firstChild.textContent + " " + row.lastChild.textContent.replace(/<[^>]*>/g, " ");
  return text.replace(/&(lt|gt|quot|amp|#x27);/g, (sign) => signs[sign]).toLowerCase();
}
function apply() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let n = 0;
  for (const row of rows) {
    let fits = !shown || row.classList.contains(shown);
    if (fits && words.length) {
      row.text ??= textOf(row);
      fits = words.every((word) => row.text.includes(word));
    }
    row.hidden = !fits;
    n += fits;
  }
  document.getElementById("count").textContent = `${n} of ${rows.length}`;
}
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
const linked = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
if (linked) { unfold(linked); linked.open = true; linked.scrollIntoView(); }
apply();
