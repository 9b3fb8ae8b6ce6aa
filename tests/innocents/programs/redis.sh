# A server that writes its data to disk (BGSAVE: a fork) while clients write to it.
set -eu
cd "$1"
# The package of the tools has the server's program, which is a server by this name; the server's own
# package would start one.
ln -s /usr/bin/redis-check-rdb redis-server
./redis-server --port 0 --unixsocket "$1/redis" --dir "$1" --save '' --rdb-key-save-delay -20 \
    --enable-debug-command local >log 2>&1 &
server=$!
echo $server >grower
cli() { redis-cli -s redis "$@"; }
until cli ping >/dev/null 2>&1; do sleep 0.05; kill -0 $server; done
cli debug populate 300000 key 200 >/dev/null
cli bgsave >/dev/null
end=$(($(date +%s) + $2))
n=0
while [ "$(date +%s)" -lt $end ]; do
    n=$((n + 1))
    redis-benchmark -s redis -t set -n 20000 -r 300000 -d 300 -c 8 -q >/dev/null
    [ $((n % 8)) != 0 ] || cli bgsave >/dev/null
done
# It grows, and is written to while all of it is written to disk.
until cli info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; done
cli debug populate 250000 more 300 >/dev/null
cli bgsave >/dev/null
redis-benchmark -s redis -t set -n 60000 -r 300000 -d 400 -c 8 -q >/dev/null
until cli info persistence | grep -q rdb_bgsave_in_progress:0; do sleep 0.1; done
cli info persistence | grep -q rdb_last_bgsave_status:ok
cli shutdown nosave
wait $server
