"use strict";

const query = new URLSearchParams(location.search);

const cart = {
  read: () => JSON.parse(localStorage.getItem("cart") ?? "{}"),
  write(content) {
    localStorage.setItem("cart", JSON.stringify(content));
    showCount();
  },
  add(id, count) {
    const content = cart.read();
    content[id] = (content[id] ?? 0) + count;
    cart.write(content);
  },
  remove(id) {
    const { [id]: _, ...rest } = cart.read();
    cart.write(rest);
  },
  total() {
    const sum = Object.entries(cart.read()).reduce((so_far, [id, count]) => so_far + byId(id).price * count, 0);
    return sum * (1 - (VOUCHERS[localStorage.getItem("voucher")] ?? 0));
  },
};

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function showCount() {
  const count = Object.values(cart.read()).reduce((so_far, one) => so_far + one, 0);
  document.getElementById("cart-link").textContent = `Cart (${count})`;
}

function showHeader() {
  const search = element("input", { type: "search", name: "q", placeholder: "Search products" });
  search.setAttribute("aria-label", "Search products");
  document.body.prepend(
    element("header", {},
      element("strong", {}, "Fernhill Garden Supply"),
      element("nav", {},
        element("a", { href: "/" }, "Home"),
        element("a", { href: "/search.html" }, "All products"),
        element("a", { href: "/cart.html", id: "cart-link" }, "Cart")),
      element("form", { action: "/search.html" }, search, element("button", {}, "Search"))));
  showCount();
}

showHeader();
