// Finding a tensor by a part of its name.

import { ask } from "./api.js";
import { bytes, element, name, plural, say, tensorName } from "./format.js";

const PAUSE = 150; // ms after the last letter
const SHOWN = 60; // tensors in the list

export function searchBox(onTensor) {
  const input = document.querySelector("#search");
  const found = document.querySelector("#found");
  const list = document.querySelector("#found-list");
  let timer = 0;
  let asked = 0;

  const close = () => { found.hidden = true; };

  const look = async () => {
    const mine = ++asked;
    const text = input.value.trim();
    if (!text) return close();
    let sentence = "";
    let tensors = [];
    try {
      tensors = (await ask("search", { text })).tensors;
      sentence = tensors.length ? plural(tensors.length, "tensor") : "No tensor has that in its name.";
    } catch {
      sentence = "The server does not answer.";
    }
    if (mine !== asked) return;
    if (tensors.length > SHOWN) sentence = `the first ${SHOWN} of ${sentence}`;
    say(document.querySelector("#found-text"), sentence);
    list.replaceChildren(...tensors.slice(0, SHOWN).map((each) => {
      const facts = `${plural(each.operations, "time")}${each.bytes ? ` · ${bytes(each.bytes)}` : ""}`;
      const go = () => {
        close();
        onTensor(each);
      };
      return element("li", {}, element("button", { type: "button", title: name(each.name), click: go },
        element("span", { text: tensorName(each.name) }), element("small", { text: facts })));
    }));
    found.hidden = false;
  };

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(look, PAUSE);
  });
  input.addEventListener("focus", () => { if (input.value.trim()) look(); });
  const move = (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") {
      close();
      input.focus();
    } else if (event.key === "ArrowDown" && buttons.length) buttons[Math.min(at + 1, buttons.length - 1)].focus();
    else if (event.key === "ArrowUp" && at > 0) buttons[at - 1].focus();
    else if (event.key === "ArrowUp" && at === 0) input.focus();
    else if (event.key === "Enter" && event.target === input && buttons.length) buttons[0].click();
    else return;
    event.preventDefault();
  };
  input.addEventListener("keydown", move);
  found.addEventListener("keydown", move);
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".search")) close(); });
  document.querySelector(".search").addEventListener("focusout", (event) => {
    if (event.relatedTarget && !event.relatedTarget.closest(".search")) close();
  });
}
