# A prefork web server with 64 workers, which share what the application loads before the fork; the last
# request grows.
set -eu
cd "$1"
cat >application.py <<'PYTHON'
import os, time

data = b"0123456789abcdef" * (4 << 20)

def application(environ, start_response):
    if environ["PATH_INFO"] == "/grow":
        with open("grower", "w") as file:
            file.write(str(os.getpid()))
        blocks = []
        # More than the workers take when they exit: each writes to all objects of the interpreter then.
        for _ in range(300):
            blocks.append(b"x" * (4 << 20))
            time.sleep(0.005)
        time.sleep(1)
    start = int(environ["QUERY_STRING"] or 0)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [data[start:start + 50_000]]
PYTHON
cat >load.py <<'PYTHON'
import http.client, random, socket, sys, threading, time

class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("web")

def get(path):
    connection = Connection("localhost")
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 200, response.status

failed = []

def load(end):
    try:
        while time.time() < end:
            get(f"/?{random.randrange(64_000_000)}")
            time.sleep(0.02)
    except BaseException as error:
        failed.append(error)

end = time.time() + float(sys.argv[1])
threads = [threading.Thread(target=load, args=(end,)) for _ in range(32)]
for thread in threads:
    thread.start()
time.sleep(float(sys.argv[1]) - 1)
get("/grow")
for thread in threads:
    thread.join()
assert not failed, failed[0]
PYTHON
gunicorn --preload --workers 64 --backlog 256 --worker-tmp-dir "$1" --bind "unix:$1/web" application:application >log 2>&1 &
server=$!
until [ -S web ]; do sleep 0.05; kill -0 $server; done
/usr/bin/python3 load.py "$2"
kill $server
wait $server
