"use strict";
(() => {
  const touch = !matchMedia("(hover: hover) and (pointer: fine)").matches;
  const NARROW = 480; // CSS pixels of a panel, below which its title leaves no room for buttons
  const LABEL = 100; // CSS pixels that a level category name needs
  const config = {
    responsive: true,
    displaylogo: false,
    // Named one by one: plotly's own choice has a button that sends the figure to a server.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    plotlyServerURL: "",
  };

  const NIGHT = { // colours of a figure on a dark page; the others are bright enough
    "#ffffff": "#17191c", "#222222": "#e8e8e8", "#dddddd": "#34383e", "#cccccc": "#44484e",
    "#666666": "#b4b4b4", "#000000": "#e8e8e8", "#882255": "#d98cb3", "#332288": "#9a90e8",
  };
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;

  function coloured(text) {
    return dark ? text.replace(/#[0-9a-f]{6}/gi, (each) => NIGHT[each.toLowerCase()] ?? each) : text;
  }

  function draw(card) {
    const panels = JSON.parse(coloured(card.querySelector("script").textContent));
    const plots = [...card.querySelectorAll(".plot")];
    for (const button of card.querySelectorAll("button[data-key]")) {
      button.addEventListener("click", () => toggle(button, plots, panels));
    }
    return panels.map((panel, place) => {
      const width = plots[place].clientWidth;
      const { layout } = panel;
      layout.dragmode = touch ? false : "zoom";
      if (layout.xaxis.ticktext) {
        layout.xaxis.tickangle = width / layout.xaxis.ticktext.length > LABEL ? 0 : -35;
      }
      const displayModeBar = touch || width < NARROW ? false : "hover";
      return Plotly.newPlot(plots[place], panel.data, layout, { ...config, displayModeBar });
    });
  }

  function toggle(button, plots, panels) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    panels.forEach((panel, place) => {
      const traces = panel.keys.flatMap((key, at) => (key === button.dataset.key ? [at] : []));
      if (traces.length) Plotly.restyle(plots[place], { visible: shown }, traces);
    });
  }

  const cards = [...document.querySelectorAll("[data-figure]")];
  Promise.all(cards.flatMap(draw)).then(() => {
    document.documentElement.dataset.drawn = "true";
  });
})();
