"use strict";
// Keeps the page equal to the run's report. It asks nobody but the server that it came from.

const PAUSE = 2000;
const TOLD = {
  unfinished: "Live: new rounds appear by themselves.",
  finished: "The run has finished.",
  failed: "The run has failed. If it is gone on with, new rounds appear here.",
  interrupted: "The run was stopped. If it is gone on with, new rounds appear here.",
  unreadable: "The run directory cannot be read at present; what follows is older.",
  gone: "fedstrata watch has ended, or cannot be reached; what follows is what it told last.",
};

const line = document.getElementById("live");
const main = document.querySelector("main");
let version = "";

const tell = state => {
  if (line.dataset.state === state) return;  // a screen reader reads out every change
  line.dataset.state = state;
  line.textContent = TOLD[state];
};

const folds = () => [...main.querySelectorAll("details")].map(
  item => [item.querySelector("summary").textContent, item]);

const show = text => {
  const page = new DOMParser().parseFromString(text, "text/html");
  const open = new Map(folds().map(([name, item]) => [name, item.open]));
  const [left, top] = [scrollX, scrollY];
  main.replaceChildren(...page.querySelector("main").childNodes);
  for (const [name, item] of folds()) if (open.has(name)) item.open = open.get(name);
  document.title = page.title;
  scrollTo(left, top);
};

const look = async () => {
  try {
    const answer = await fetch("report", {headers: version ? {"If-None-Match": version} : {}});
    if (answer.status === 200) {
      show(await answer.text());
      version = answer.headers.get("ETag");
    }
    tell(answer.headers.get("Run-State") || "unreadable");
  } catch {
    tell("gone");
  }
  setTimeout(look, PAUSE);
};

look();
