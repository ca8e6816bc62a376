// What a reader's eye would find wrong with the shown charts of a page, one line each. Runs in the tests' copy only.
function faults() {
  const found = [], paper = rgb(getComputedStyle(document.body).backgroundColor);
  const say = (svg, text) => found.push(`${svg.closest('figure').id}: ${text}`);
  const shown = [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 0);
  for (const svg of shown) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(e => ({ said: e.textContent, box: e.getBoundingClientRect(), e }));
    for (const { said, box, e } of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        say(svg, `"${said}" is cut`);
      const contrast = ratio(rgb(getComputedStyle(e).fill), paper);
      if (contrast < 4.5) say(svg, `"${said}" has a contrast of ${contrast.toFixed(2)}`);
    }
    for (let i = 0; i < texts.length; i++)
      for (let j = 0; j < i; j++)
        if (meet(texts[i].box, texts[j].box)) say(svg, `"${texts[i].said}" lies on "${texts[j].said}"`);
    for (const line of svg.querySelectorAll('.line, .axis')) {
      const to = line.getScreenCTM(), length = line.getTotalLength();
      for (let at = 0; at <= length; at += Math.max(length / 400, 1)) {
        const p = line.getPointAtLength(at).matrixTransform(to);
        const hit = texts.find(t => p.x > t.box.left + 1 && p.x < t.box.right - 1 && p.y > t.box.top + 3 && p.y < t.box.bottom - 3);
        if (hit) { say(svg, `a line runs through "${hit.said}"`); break; }
      }
    }
    for (const line of svg.querySelectorAll('.line, .dot')) {
      const mark = line.classList.contains('dot') ? 'fill' : 'stroke';
      const contrast = ratio(rgb(getComputedStyle(line)[mark]), paper);
      if (contrast < 3) say(svg, `a ${mark} has a contrast of ${contrast.toFixed(2)}`);
    }
  }
  for (const e of document.querySelectorAll('h1, h2, h3, p, figure, .legend span')) {
    const box = e.getBoundingClientRect();
    if (box.right > innerWidth + 1 || box.left < -1) found.push(`${e.tagName} "${e.textContent.slice(0, 30)}" is cut`);
  }
  return [...new Set(found)];
}
// Sides by side: how many charts stand on the first row of each section, and how much of the page's width they take.
function rows() {
  return [...document.querySelectorAll('section .charts')].map(section => {
    const boxes = [...section.children].map(e => e.getBoundingClientRect());
    const first = boxes.filter(b => Math.abs(b.top - boxes[0].top) < 2);
    return [first.length, boxes.length, Math.round(Math.max(...first.map(b => b.right)) - first[0].left)];
  });
}
const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
const rgb = text => text.match(/[\d.]+/g).slice(0, 3).map(Number);
const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const ratio = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + .05) / (low + .05); };
addEventListener('load', () => parent.postMessage(JSON.stringify({
  faults: faults(), rows: rows(), width: innerWidth, scroll: document.documentElement.scrollWidth,
  svgs: [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 0).length,
  scrolled: [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length,
  asked: performance.getEntriesByType('resource').length }), '*'));
