# A server with 96 MiB of shared buffers, 12 sessions that read all of a table, and one that sorts.
set -eu
cd "$1"
PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1):$PATH
export PGHOST=$1 PGUSER=innocent PGDATABASE=postgres
initdb -D data -A trust -U innocent --no-sync >/dev/null
postgres -D data -c shared_buffers=96MB -c fsync=off -c autovacuum=off \
    -c listen_addresses= -c "unix_socket_directories=$1" >log 2>&1 &
server=$!
until pg_isready -q; do sleep 0.05; kill -0 $server; done
pgbench -i -s 6 -q --unlogged-tables >/dev/null 2>&1
pgbench -n -S -c 12 -T "$2" >/dev/null 2>&1 &
load=$!
sleep "$(($2 - 2))"
psql -qAt >/dev/null <<'SQL'
\o grower
select pg_backend_pid();
\o
set work_mem = '1GB';
set max_parallel_workers_per_gather = 0;
select count(*) from (select md5(i::text) || md5((-i)::text) from generate_series(1, 700000) i order by 1 offset 0) _;
SQL
wait $load
kill -INT $server
wait $server
