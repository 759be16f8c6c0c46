// The text beside the pointer.

const tip = document.querySelector("#tip");
let owner = null; // the element below the pointer

export function showTip(text, event) {
  owner = event.currentTarget;
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const below = event.clientY + 18;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - width - 4))}px`;
  tip.style.top = `${below + height > innerHeight ? event.clientY - height - 10 : below}px`;
}

/** Hides the text of an element; that of another one stays. */
export function hideTip(of) {
  if (of === owner) tip.hidden = true;
}
