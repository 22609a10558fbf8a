"use strict";
// Shows one example task at a time. Without this script all of them are shown, one below the other.
(() => {
  const pick = document.getElementById("pick");
  if (!pick) return;
  const examples = [...document.querySelectorAll(".example")];
  const show = (index) => {
    const at = (index + examples.length) % examples.length;
    examples.forEach((example, i) => example.classList.toggle("current", i === at));
    pick.value = String(at);
  };
  document.documentElement.classList.add("one-at-a-time");
  document.getElementById("previous").addEventListener("click", () => show(Number(pick.value) - 1));
  document.getElementById("next").addEventListener("click", () => show(Number(pick.value) + 1));
  pick.addEventListener("change", () => show(Number(pick.value)));
  show(0);
})();
