# A server with 1 GiB of shared buffers, 50 sessions that read all of 880 MiB of tables, and one that sorts.
set -eu
cd "$1"
PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1):$PATH
export PGHOST=$1 PGUSER=innocent PGDATABASE=postgres
initdb -D data -A trust -U innocent --no-sync >/dev/null
postgres -D data -c shared_buffers=1GB -c fsync=off -c autovacuum=off -c max_connections=60 \
    -c listen_addresses= -c "unix_socket_directories=$1" >log 2>&1 &
server=$!
until pg_isready -q; do sleep 0.05; kill -0 $server; done
# One row per page. A table of more than a fourth of the buffers would not stay in them.
for table in 1 2 3 4; do
    psql -q <<SQL
create unlogged table rows_$table (row text);
alter table rows_$table alter row set storage plain;
insert into rows_$table select repeat('x', 8000) from generate_series(1, 28160);
SQL
done
cat >scan.sql <<'SQL'
\set table random(1, 4)
select count(*) from rows_:table;
SQL
pgbench -i -s 6 -q --unlogged-tables >/dev/null 2>&1
pgbench -n -f scan.sql -b select-only@100 -c 50 -T "$2" >/dev/null 2>&1 &
load=$!
# Its peak lasts for seconds: measuring 50 sessions on a busy machine takes one.
sleep "$(($2 > 10 ? $2 - 8 : 2))"
psql -qAt >/dev/null <<'SQL'
\o grower
select pg_backend_pid();
\o
set work_mem = '1GB';
set max_parallel_workers_per_gather = 0;
select count(*), pg_sleep(4) from (select -i, repeat('x', 400) from generate_series(1, 1200000) i order by 1 offset 0) _;
SQL
wait $load
kill -INT $server
wait $server
