/* The page: every part watches the store, one loop feeds it. */

import { byId, say } from "./dom.js";
import { startConnectionView } from "./connection-view.js";
import { keepConnected } from "./connection.js";
import { startEditor } from "./editor.js";
import { startFigures } from "./figures.js";
import { startPlan } from "./plan-view.js";
import { startQueries } from "./queries.js";
import { startRows } from "./rows.js";
import { startStreams } from "./streams.js";
import { startTheme } from "./theme.js";
import { startTimeline } from "./timeline.js";
import { startWhy } from "./why.js";
import { watch } from "./store.js";
import { clock } from "./format.js";

const SHOWN_AFTER = 1000;

startTheme();
startConnectionView();
startFigures();
startPlan();
startEditor();
startQueries();
startWhy();
startRows();
startStreams();
startTimeline();
watch(["info"], ({ info }) => say(byId("about"), `streamjoin ${info.version}, up since ${clock(info.started_at)}`));
keepConnected();
// What is there is shown at once, and whole; where the service takes long, what is missing is seen to be.
setTimeout(() => (byId("main").dataset.slow = ""), SHOWN_AFTER);
