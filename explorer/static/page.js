// Make the page live: follow the run, count down, show times as people say them, draw charts, copy commands.
// Without this script every number is still there: the server has written it.

import { startClocks } from "./clock.js";
import { startCopying } from "./copy.js";
import { followRun } from "./live.js";
import { startRefreshing } from "./refresh.js";

startClocks(document);
startCopying(document);
if (document.querySelector(".charts")) import("./charts.js").then(({ startCharts }) => startCharts());
startRefreshing();
followRun();
