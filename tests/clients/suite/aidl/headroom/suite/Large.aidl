package headroom.suite;

@Backing(type="long")
enum Large { ZERO, ONE, HUGE = 0x7fffffffffffffff }
