package headroom.suite;

@Backing(type="byte")
enum Small { ZERO, ONE, SEVEN = 7 }
