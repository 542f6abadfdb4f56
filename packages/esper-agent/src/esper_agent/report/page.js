// Draws every chart of the page. On a touch screen a finger scrolls the page instead of zooming a chart.
const touch = matchMedia("(pointer: coarse)").matches;
for (const data of document.querySelectorAll("script[data-chart]")) {
  const figure = JSON.parse(data.textContent);
  figure.layout.dragmode = touch ? false : "zoom";
  const options = { responsive: true, displayModeBar: false, showTips: false };
  Plotly.newPlot(data.dataset.chart, figure.data, figure.layout, options);
}
