# A browser with ten tabs, of which one grows.
set -eu
cd "$1"
n=0
while [ $n -lt 9 ]; do
    n=$((n + 1))
    cat >"$n.html" <<'HTML'
<canvas id="canvas" width="600" height="400"></canvas>
<script>
const context = document.getElementById("canvas").getContext("2d");
let texts = [];
setInterval(() => {
    context.fillRect(Math.random() * 600, Math.random() * 400, 20, 20);
    for (let i = 0; i < 500; i++) texts[(Math.random() * 20000) | 0] = "text " + Math.random();
}, 50);
</script>
HTML
done
# It opens the other tabs. The largest tab is the one that grows later.
cat >grow.html <<HTML
<script>
for (let n = 1; n <= 9; n++) window.open(n + ".html", "_blank", "noopener");
const blocks = [new Uint8Array(128 << 20).fill(1)];
console.log("the first block is there");
setTimeout(function grow() {
    blocks.push(new Uint8Array(4 << 20).fill(1));
    if (blocks.length < 120) setTimeout(grow, 10);
    else setTimeout(() => console.log("all blocks are there"), 1000);
}, $2 * 1000);
</script>
HTML
chromium --headless=new --disable-gpu --no-first-run --disable-popup-blocking --disable-background-timer-throttling \
    --user-data-dir="$1/profile" --enable-logging=stderr "file://$1/grow.html" >out 2>log &
browser=$!
logged() {
    until grep -q "$1" log; do sleep 0.05; kill -0 $browser; done
}
logged 'the first block is there'
sleep 1
ps -u "$(id -u)" -o rss=,pid=,args= | grep -e --type=renderer | sort -n | awk 'END { print $2 }' >grower
logged 'all blocks are there'
kill $browser
wait $browser || true
