"use strict";
// Files are sent one after another, each as the raw body of a request; their names stay in this page.
const facts = JSON.parse(document.getElementById("facts").textContent);
const at = (id) => document.getElementById(id);
const [drop, files, choice, own, results] = ["drop", "files", "threshold", "own", "results"].map(at);
const OWN = "own";
const waiting = [];
let working = false, done = 0, failed = 0;

function made(tag, text, className) {
  const one = document.createElement(tag);
  if (text !== undefined) one.textContent = text;
  if (className) one.className = className;
  return one;
}

const number = (value) => Number(value.toPrecision(4)).toString();
const percent = (share) => `${Number((100 * share).toPrecision(share > 0.1 ? 3 : 2))} %`;
const words = (name) => name.replace(/^(\w+) ([\d.]+)$/, (_, what, share) => `${percent(share)} ${what} on ${facts.folds ? "held-out rows" : "validation"}`);

// The threshold: one name for all labels, or with one label any number.
const names = [...new Set(facts.labels.flatMap((label) => label.thresholds.map((one) => one.name)))];
for (const name of names) choice.append(new Option(words(name), name));
if (facts.labels.length === 1) choice.append(new Option("my own score", OWN));
if (names.includes("specificity 0.9")) choice.value = "specificity 0.9";
choice.parentElement.hidden = !choice.options.length;
if (facts.labels.length === 1 && facts.labels[0].thresholds.length) own.value = number(facts.labels[0].thresholds[0].value);

function thresholdOf(label) {
  if (choice.value !== OWN) return label.thresholds.find((one) => one.name === choice.value);
  return own.value === "" ? undefined : { value: own.valueAsNumber, reached: null };
}

function showThreshold() {
  const one = choice.value === OWN;
  own.hidden = at("own-label").hidden = !one;
  const said = facts.labels.map((label) => {
    const chosen = thresholdOf(label), reached = chosen && chosen.reached;
    if (!reached) return "";
    return `${facts.labels.length > 1 ? `${label.shown}: the` : "The"} threshold is a score of ${number(chosen.value)}. On ${reached.part === "oof" ? "held-out rows, fold by fold," : `the ${reached.part} part`} it finds ` +
      `${reached.true_positives} of ${reached.positives} positives and clears ${reached.true_negatives} of ${reached.negatives} negatives.`;
  });
  at("reached").textContent = said.filter(Boolean).join(" ");
  for (const place of document.querySelectorAll("[data-score]")) showVerdict(place);
}

function showVerdict(place) {
  const chosen = thresholdOf(facts.labels[place.dataset.label]);
  const positive = chosen && Number(place.dataset.score) >= chosen.value;
  const verdict = place.querySelector(".verdict");
  verdict.className = `verdict ${!chosen ? "" : positive ? "positive" : "negative"}`;
  verdict.textContent = !chosen ? "no threshold for this label" :
    positive ? "positive: at or above the threshold" : "negative: below the threshold";
  const line = place.querySelector(".line"), old = facts.labels[place.dataset.label].distribution;
  if (line && chosen) for (const end of ["x1", "x2"]) line.setAttribute(end, across(old, chosen.value));
  if (line) line.toggleAttribute("hidden", !chosen);
}

// Training scores by class, the image's own score, the threshold.
const WIDTH = 400, HEIGHT = 70;
const across = (distribution, score) => {
  const low = distribution.edges[0], high = distribution.edges.at(-1);
  return high > low ? WIDTH * Math.min(1, Math.max(0, (score - low) / (high - low))) : WIDTH / 2;
};

function strip(distribution, score) {
  const part = (tag, attributes) => {
    const one = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    return one;
  };
  const svg = part("svg", { viewBox: `-4 -4 ${WIDTH + 8} ${HEIGHT + 8}`, class: "strip", role: "img" });
  svg.setAttribute("aria-label", "Training scores of negatives and positives, and where this image stands; the position above says it in numbers.");
  const bins = distribution.edges.length - 1;
  for (const kind of ["negatives", "positives"]) {
    const highest = Math.max(...distribution[kind], 1e-9);
    distribution[kind].forEach((share, bin) => {
      const height = HEIGHT * share / highest;
      svg.append(part("rect", { class: kind, x: WIDTH * bin / bins, width: WIDTH / bins, y: HEIGHT - height, height }));
    });
  }
  const x = across(distribution, score);
  svg.append(part("line", { class: "line", x1: 0, x2: 0, y1: 0, y2: HEIGHT }));
  svg.append(part("line", { class: "here", x1: x, x2: x, y1: -4, y2: HEIGHT + 4 }));
  return svg;
}

function position(one) {
  const said = [["above_negatives", "negative"], ["above_positives", "positive"]].filter(([key]) => one[key] !== null)
    .map(([key, kind]) => `${percent(one[key])} of the ${kind} training images`);
  return said.length ? `higher than ${said.join(" and ")}` : "not known: this folder has no training scores";
}

function labelResult(one, place, name) {
  const label = facts.labels[place], section = made("div");
  section.dataset.score = one.score;
  section.dataset.label = place;
  if (facts.labels.length > 1) section.append(made("h4", label.shown));
  const list = made("dl");
  const rows = [["Score", number(one.score)], ["Probability", one.probability === null ? "not known" : percent(one.probability)],
    ["Verdict", ""], ["Position", position(one)]];
  for (const [term, text] of rows) {
    const row = made("div");
    row.append(made("dt", term), made("dd", text, term === "Verdict" ? "verdict" : ""));
    list.append(row);
  }
  const beside = made("div", undefined, "beside"), left = made("div"), right = made("div");
  left.append(list);
  if (label.distribution) {
    left.append(strip(label.distribution, one.score));
    left.append(made("p", "Training scores: negatives blue, positives orange, each class scaled to itself. Solid line: this image. Dashed line: threshold.", "key"));
  }
  beside.append(left);
  if (one.picture !== null) {
    const picture = made("img");
    picture.src = one.picture;
    picture.alt = `${name}, ${label.shown}: left the image, right the same with its Grad-CAM.`;
    right.append(picture);
    beside.append(right);
  }
  section.append(beside);
  return section;
}

function card(name) {
  const article = made("article", undefined, "result");
  const title = made("h3"), text = made("bdi", name);
  title.append(text);
  article.append(title);
  results.prepend(article);
  at("clear").hidden = false;
  return article;
}

const pause = (milliseconds) => new Promise((go) => setTimeout(go, milliseconds));

async function answerFor(file) {
  if (file.size > facts.max_bytes) throw new Error(`The file is larger than ${facts.max_bytes.toLocaleString("en")} bytes.`);
  for (;;) {
    let answer, body;
    try {
      answer = await fetch("/judge", { method: "POST", body: file, headers: { "Content-Type": facts.body_type } });
      if (answer.status === 503) { await pause(1000); continue; }  // another page is at work
      body = await answer.json();
    } catch {
      throw new Error("There was no answer. Is deepauc serve still running, and can the file still be read?");
    }
    if (!answer.ok) throw new Error(body.error);
    return body;
  }
}

function tell() {
  const many = (count) => `${count} image${count === 1 ? "" : "s"}`;
  at("status").textContent = `${many(done)} scored` + (failed ? `, ${many(failed)} could not be read` : "") +
    (waiting.length || working ? `; ${waiting.length + (working ? 1 : 0)} to go …` : ".");
}

async function work() {
  if (working) return;
  working = true;
  for (let file; (file = waiting.shift());) {
    tell();
    try {
      const found = await answerFor(file), article = card(file.name);
      found.labels.forEach((one, place) => article.append(labelResult(one, place, file.name)));
      for (const place of article.querySelectorAll("[data-score]")) showVerdict(place);
      done += 1;
    } catch (error) {
      const article = card(file.name);
      article.classList.add("failed");
      article.append(made("p", error.message));
      failed += 1;
    }
  }
  working = false;
  tell();
}

function add(list) {
  waiting.push(...list);
  if (list.length) work();
}

files.addEventListener("change", () => { add([...files.files]); files.value = ""; });
// A drop beside the field counts too: a browser would otherwise open the image and lose the page.
addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
addEventListener("drop", (event) => { event.preventDefault(); drop.classList.remove("over"); add([...event.dataTransfer.files]); });
choice.addEventListener("change", showThreshold);
own.addEventListener("input", showThreshold);
at("clear").addEventListener("click", () => {
  results.replaceChildren();
  done = failed = 0;
  at("clear").hidden = true;
  at("status").textContent = "No image yet.";
  files.focus();
});
showThreshold();
