# The agent, which leads the session and waits; 17 jobs that hold what they have, and one that grows.
set -eu
cd "$1"
hold='import sys, time; block = b"x" * (int(sys.argv[1]) << 20); time.sleep(float(sys.argv[2]))'
grow='import time
blocks = []
for _ in range(100):
    blocks.append(b"x" * (2 << 20))
    time.sleep(0.01)'
n=0
while [ $n -lt 17 ]; do
    n=$((n + 1))
    python3 -c "$hold" 8 "$(($2 + 2))" &
done
sleep "$(($2 - 1))"
python3 -c "$grow" &
echo $! >grower
wait $!
wait
