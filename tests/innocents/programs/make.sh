# 64 compilations, 32 at a time; then a job that grows.
set -eu
cd "$1"
n=0
while [ $n -lt 64 ]; do
    n=$((n + 1))
    {
        echo '#include <stdio.h>'
        i=0
        while [ $i -lt 60 ]; do
            i=$((i + 1))
            echo "int f$i(int x) { for (int i = 0; i < x; i++) x ^= i * $i; printf(\"%d\", x); return x; }"
        done
    } >"$n.c"
done
cat >Makefile <<'MAKE'
all: $(patsubst %.c,%.o,$(wildcard *.c))
	@sh -c 'echo $$$$ >grower; exec python3 grow.py'
%.o: %.c
	@cc -O2 -c $< -o $@
MAKE
cat >grow.py <<'PYTHON'
import time
blocks = []
for _ in range(300):
    blocks.append(b"x" * (2 << 20))
    time.sleep(0.005)
PYTHON
make -s -j32
