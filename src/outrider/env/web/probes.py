"""What is asked of a page: JavaScript that answers with little, however large the page is."""

STATE = """() => {
  const shown = (document.body ?? document.documentElement)?.innerText ?? '';
  const fields = [...document.querySelectorAll('input, select, textarea')].slice(0, 200).map(field => {
    const name = field.labels?.[0]?.innerText || field.ariaLabel || field.placeholder || field.name || field.id;
    const isBox = field.type === 'checkbox' || field.type === 'radio';
    const value = isBox ? (field.checked ? 'ticked' : 'not ticked') : field.value;
    return `${name.trim().slice(0, 60)} = ${value.slice(0, 60)}`;
  });
  const lines = shown.slice(0, 50000).split('\\n').map(line => line.trim().slice(0, 160)).filter(line => line);
  return {
    url: location.href.slice(0, 2000),
    title: document.title.slice(0, 200),
    lines: lines.slice(0, 1000).concat(fields),
    loading: document.readyState === 'loading',
  };
}"""
"""Where the page is and what it shows."""

SETTLED = """() => new Promise(done => {
  setTimeout(done, 100);
  requestAnimationFrame(() => setTimeout(done, 0));
})"""
"""Waits until what an event has set off has been carried out and drawn."""

TEXT = """([start, count]) => {
  const text = (document.body ?? document.documentElement)?.innerText ?? '';
  return [text.slice(start, start + count), text.length];
}"""

SIZE = "() => document.getElementsByTagName('*').length"

OPTIONS = """element => element instanceof HTMLSelectElement
  ? [...element.options].slice(0, 500).map(option => [option.value, option.label]) : null"""

SCROLL = """direction => {
  let box = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  const scrolls = element => element.scrollHeight > element.clientHeight + 1
    && ['auto', 'scroll'].includes(getComputedStyle(element).overflowY);
  while (box && !scrolls(box)) box = box.parentElement;
  box ??= document.scrollingElement ?? document.documentElement;
  const step = box.clientHeight * 0.8;
  const top = {up: box.scrollTop - step, down: box.scrollTop + step, top: 0, bottom: box.scrollHeight}[direction];
  box.scrollTo({top, behavior: 'instant'});
  const below = box.scrollHeight - box.clientHeight - box.scrollTop;
  return [Math.round(box.scrollTop), Math.max(0, Math.round(below))];
}"""
"""Scrolls what is in the middle of the window; answers how many pixels lie above and below."""
