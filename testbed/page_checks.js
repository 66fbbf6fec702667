// What testbed/page_checks.py asks of an open page.
window.musterChecks = (() => {
  const PUTTING = ["prepend", "replaceChildren"]; // by which a live page puts new elements in the place of others
  const held = PUTTING.map(name => [name, Element.prototype[name]]);

  const violations = () => axe.run(document, { resultTypes: ["violations"], runOnly: [
    "wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
    .then(({ violations }) => violations
      .map(({ id, impact, help, nodes }) =>
        `${impact} ${id}: ${help}: ${nodes.slice(0, 5).map(node => node.target.join(" ")).join(", ")}`));

  const tabbable = () => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex], details > summary")]
    .filter(element => element.tabIndex >= 0 && !element.disabled && element.type !== "hidden"
      && element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true }));

  const focused = () => {
    const element = document.activeElement;
    if (!element || element === document.body) return null;
    element.musterTabbed = true;
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
    return { name: `${element.tagName} ${(element.textContent || element.name || "").trim().slice(0, 40)}`,
      shown: outlined || style.boxShadow !== "none", inside: box.bottom > 0 && box.top < innerHeight };
  };

  const missed = count => tabbable().slice(0, count).filter(element => !element.musterTabbed)
    .map(element => element.outerHTML.slice(0, 80));

  const wide = width => [...document.querySelectorAll("body *")]
    .filter(element => element.getBoundingClientRect().right > width + 1)
    .map(element => `${element.tagName}.${element.className}`).slice(0, 5).join(", ");

  const basics = () => {
    const found = [];
    const one = (selector, what) => {
      const count = document.querySelectorAll(selector).length;
      if (count !== 1) found.push(`${count} ${what}`);
    };
    one("h1", "first headings");
    one("main", "main parts");
    one("head > title", "titles");
    one('meta[name="viewport"]', "viewports");
    one('meta[name="description"]', "descriptions");
    if (!document.documentElement.lang) found.push("no language");
    if (document.doctype === null) found.push("no doctype");
    for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
      if (!field.labels.length && !field.getAttribute("aria-label"))
        found.push(`a field without a label: ${field.name}`);
    for (const image of document.querySelectorAll("img"))
      if (!image.hasAttribute("alt")) found.push(`a picture without a text: ${image.src}`);
    const ids = [...document.querySelectorAll("[id]")].map(element => element.id);
    for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) found.push(`two elements named ${id}`);
    for (const link of document.querySelectorAll('a[href^="#"]'))
      if (!document.getElementById(link.hash.slice(1))) found.push(`a link to nowhere: ${link.hash}`);
    return found;
  };

  const hold = () => { for (const name of PUTTING) Element.prototype[name] = () => {}; };
  const letGo = () => { for (const [name, method] of held) Element.prototype[name] = method; };
  const restart = () => { document.activeElement?.blur(); scrollTo(0, 0); return tabbable().length; };

  return { violations, focused, missed, wide, basics, hold, letGo, restart };
})();
