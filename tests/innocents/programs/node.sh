# Garbage for the collector, then buffers that stay.
set -eu
cd "$1"
cat >main.js <<'JS'
const fs = require("fs");
const end = Date.now() + 1000 * Number(process.argv[2]);
let kept = [];
function load() {
    for (let i = 0; i < 20000; i++) kept[i % 200000] = { i, text: "x" + i };
    if (Date.now() < end) return setImmediate(load);
    fs.writeFileSync("grower", String(process.pid));
    const blocks = [];
    (function grow() {
        blocks.push(Buffer.alloc(2 << 20, 1));
        if (blocks.length < 100) setTimeout(grow, 5);
    })();
}
load();
JS
exec node main.js "$2"
