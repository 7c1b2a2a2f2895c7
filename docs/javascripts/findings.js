// Filters of the gallery by topic and verdict, kept behind the # of the address. Without scripts all cards are shown.
(() => {
  const place = document.getElementById("findings-filter");
  if (!place) return;
  const cards = [...document.querySelectorAll("article.finding")];
  const verdicts = ["holds", "does not hold", "inconclusive"];
  const choices = { topic: [...new Set(cards.map((card) => card.dataset.topic))], verdict: verdicts };
  const asked = new URLSearchParams(location.hash.slice(1));
  const chosen = {};
  const count = document.createElement("p");
  count.setAttribute("aria-live", "polite");
  const update = () => {
    let left = 0;
    for (const card of cards) {
      card.hidden = !Object.entries(chosen).every(([kind, value]) => !value || card.dataset[kind] === value);
      left += !card.hidden;
    }
    const all = !Object.values(chosen).some(Boolean);
    count.textContent = all ? `All ${cards.length} findings.` : left ? `${left} of ${cards.length} findings.` : "No finding is of both kinds.";
  };
  for (const [kind, values] of Object.entries(choices)) {
    chosen[kind] = values.includes(asked.get(kind)) ? asked.get(kind) : "";
    const group = place.appendChild(document.createElement("fieldset"));
    group.appendChild(document.createElement("legend")).textContent = kind[0].toUpperCase() + kind.slice(1);
    for (const value of ["", ...values]) {
      const label = group.appendChild(document.createElement("label"));
      const input = label.appendChild(document.createElement("input"));
      Object.assign(input, { type: "radio", name: `findings-${kind}`, checked: value === chosen[kind] });
      input.addEventListener("change", () => {
        chosen[kind] = value;
        const set = Object.fromEntries(Object.entries(chosen).filter(([, other]) => other));
        history.replaceState(null, "", `#${new URLSearchParams(set)}`);
        update();
      });
      label.append(` ${value || "any"}`);
    }
  }
  place.appendChild(count);
  update();
})();
