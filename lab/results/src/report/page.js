"use strict";
(async () => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const touches = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  };
  for (const [index, chart] of charts.entries()) {
    const place = document.getElementById("chart-" + index);
    // On a phone a finger on a chart scrolls the page.
    if (touches) { chart.layout.dragmode = false; }
    try {
      await Plotly.newPlot(place, chart.data, chart.layout, config);
      place.dataset.drawn = "yes";
      if (chart.is_3d) {
        // Paper cannot take what the graphics processor draws: it gets a picture.
        const picture = document.createElement("img");
        picture.className = "printed";
        picture.alt = place.getAttribute("aria-label");
        picture.src = await Plotly.toImage(place, { format: "png", width: 640, height: 480, scale: 2 });
        place.after(picture);
        place.classList.add("has-picture");
      }
    } catch (error) {
      place.dataset.drawn = "no";
      const words = document.createElement("p");
      words.textContent = "This chart cannot be drawn here; its figures are in the table below.";
      place.replaceChildren(words);
    }
  }
  document.documentElement.dataset.drawn = String(charts.length);
})();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    details.dataset.folded = "";
  }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-folded]")) {
    details.open = false;
    delete details.dataset.folded;
  }
});
