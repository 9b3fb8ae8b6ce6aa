# Garbage for the collector, then blocks that stay.
set -eu
cd "$1"
cat >Main.java <<'JAVA'
import java.nio.file.*;
import java.util.*;

public class Main {
    public static void main(String[] arguments) throws Exception {
        // The collector lets the heap grow in both phases.
        Files.writeString(Path.of("grower"), Long.toString(ProcessHandle.current().pid()));
        long end = System.currentTimeMillis() + 1000 * Long.parseLong(arguments[0]);
        Object[] kept = new Object[4096];
        for (int i = 0; System.currentTimeMillis() < end; i++) kept[i % kept.length] = new byte[4096];
        List<byte[]> blocks = new ArrayList<>();
        for (int i = 0; i < 120; i++) {
            byte[] block = new byte[2 << 20];
            Arrays.fill(block, (byte) 1);
            blocks.add(block);
            Thread.sleep(5);
        }
        System.exit(blocks.size() == 120 ? 0 : 1);
    }
}
JAVA
javac Main.java
exec java -Xmx512m -XX:+UseSerialGC Main "$2"
