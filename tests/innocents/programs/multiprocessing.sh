# Eight workers that share the parent's data until they write to it; then the parent grows.
set -eu
cd "$1"
cat >main.py <<'PYTHON'
import multiprocessing, os, sys, time

# It has the most memory at all times: the data are twice in memory at first.
with open("grower", "w") as file:
    file.write(str(os.getpid()))
data = bytearray(b"x" * (96 << 20))

def work(part):
    end = time.time() + float(sys.argv[1])
    begin = part * (4 << 20)
    while time.time() < end:
        for at in range(begin, begin + (4 << 20), 4096):
            data[at] = 1
        time.sleep(0.01)
    return part

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(8) as pool:
        result = pool.map_async(work, range(8))
        time.sleep(float(sys.argv[1]) - 1)
        blocks = []
        for _ in range(80):
            blocks.append(b"x" * (2 << 20))
            time.sleep(0.005)
        assert sorted(result.get()) == list(range(8))
PYTHON
exec python3 main.py "$2"
