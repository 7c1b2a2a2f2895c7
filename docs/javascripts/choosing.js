// Five questions about the table that follows them: each answer leaves the rows it suits. Without scripts the table is whole.
(() => {
  const place = document.getElementById("questions");
  const follows = (other) => place.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
  const table = place && [...document.querySelectorAll("table")].find(follows);
  if (!table) return;
  const questions = [
    ["What do you have?", ["a table", "a network to train", "a trained network", "adapters", "a stream"]],
    ["How much can you train?", ["no training", "one run", "several runs", "thousands of epochs"]],
    ["What may a prediction cost?", ["one pass", "several passes"]],
    ["How many random weights?", ["few weights", "many weights"]],
    ["What matters most?", ["predictions", "posterior", "evidence"]],
  ];
  const known = questions.flatMap(([, answers]) => answers);
  const rows = [...table.tBodies[0].rows].map((row) => {
    const suits = row.cells[row.cells.length - 1].textContent.split(/[;,]/).map((word) => word.trim());
    for (const word of suits) if (!known.includes(word)) console.error(`no question has the answer "${word}"`);
    return { row, suits };
  });
  for (const { cells } of table.rows) cells[cells.length - 1].hidden = true;

  // A row that says nothing about a question suits every answer to it.
  const fits = (suits, answers, answer) =>
    !answer || suits.includes(answer) || !answers.some((other) => suits.includes(other));
  const count = document.createElement("p");
  count.setAttribute("aria-live", "polite");
  const chosen = questions.map(() => "");
  const update = () => {
    let left = 0;
    for (const { row, suits } of rows) {
      row.hidden = !questions.every(([, answers], i) => fits(suits, answers, chosen[i]));
      left += !row.hidden;
    }
    count.textContent = !chosen.some(Boolean)
      ? `All ${rows.length} ways. Answer what you know.`
      : left ? `${left} of ${rows.length} ways suit; the first is the usual one.` : "Nothing suits all of these: take one answer back.";
  };
  questions.forEach(([question, answers], i) => {
    const group = document.createElement("fieldset");
    const legend = group.appendChild(document.createElement("legend"));
    legend.textContent = question;
    for (const answer of ["", ...answers]) {
      const label = group.appendChild(document.createElement("label"));
      const input = label.appendChild(document.createElement("input"));
      Object.assign(input, { type: "radio", name: `question-${i}`, checked: !answer });
      input.addEventListener("change", () => { chosen[i] = answer; update(); });
      label.append(` ${answer || "any"}`);
    }
    place.appendChild(group);
  });
  place.appendChild(count);
  update();
})();
